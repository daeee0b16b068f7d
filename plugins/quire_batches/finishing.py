"""Writes the output file and the error file of a batch, in the order of its lines, and ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quire.errors import QuireError
from quire.types.batch_line import custom_id_of, error_line
from quire_batches.lines import read_lines
from quire_batches.records import StoredBatch

if TYPE_CHECKING:
    from quire_batches.service import BatchService


class BatchExpired(QuireError):
    """A request of a batch was not answered in time."""

    status = 408
    type = "BatchExpired"


async def finish(service: BatchService, batch: StoredBatch) -> None:
    """Write the answers of a batch to files, and store its end."""
    output, output_size = await asyncio.to_thread(_write, service, batch, True)
    errors, errors_size = await asyncio.to_thread(_write, service, batch, False)
    files = [
        service.new_file(batch.owner, "batch_output", f"{batch.id}_{name}.jsonl", file_id, size, batch.output_expires_s)
        for name, file_id, size in (("output", output, output_size), ("error", errors, errors_size))
        if size
    ]
    ids = {file.id for file in files}

    def ended() -> None:
        now = service.store.batches.get(batch.id)
        assert now is not None, "it has not ended"
        made = {"output_file_id": output if output in ids else None, "error_file_id": errors if errors in ids else None}
        unanswered = now.total - now.completed - now.failed if batch.outcome == "expired" else 0
        service.store.finish(now.moved(batch.outcome, failed=now.failed + unanswered, **made), files)

    await service.call(ended)
    for file_id in {output, errors} - ids:
        await asyncio.to_thread(service.folder.remove, file_id)


def _write(service: BatchService, batch: StoredBatch, good: bool) -> tuple[str, int]:
    """The id of a new content, and its bytes."""
    file_id = service.new_id("file-")
    with service.store.answers(batch.id) as answers:
        lines = _with_expired(service, batch, answers) if batch.outcome == "expired" else answers
        return file_id, service.folder.write(file_id, (text for _, is_good, text in lines if is_good is good))


def _with_expired(
    service: BatchService, batch: StoredBatch, answers: Iterator[tuple[int, bool, bytes]]
) -> Iterator[tuple[int, bool, bytes]]:
    """The answers, and in their places errors for the lines without one."""
    error = BatchExpired("The batch expired before this request was answered.")
    answer = next(answers, None)
    for number, text in read_lines(service.folder.path(batch.input_file_id)):
        if answer is not None and answer[0] == number:
            yield answer
            answer = next(answers, None)
        else:
            yield number, False, error_line(custom_id_of(text), error, "batch_expired")

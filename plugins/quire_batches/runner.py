"""Takes each batch from its start to its end: check the file, answer the lines, write the files of answers.

validating ──▶ in_progress ──▶ finalizing ──▶ completed | expired | failed
     │              └───────▶ cancelling ──▶ cancelled
     └──▶ failed

Every step can be repeated from its beginning after the server was killed: lines with an answer in the store are not
sent again, and files that no transaction stored are removed at the start.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from quire.errors import QuireError, TooLarge
from quire.plugin import RouterContext, background
from quire.types.batch_line import BatchLine, answer_line, parse_line
from quire_batches.finishing import finish
from quire_batches.lines import check_lines, read_lines
from quire_batches.records import LineError, Result, StoredBatch

if TYPE_CHECKING:
    from quire_batches.service import BatchService

log = logging.getLogger(__name__)

BLOCK_LINES, BLOCK_BYTES = 64, 4 << 20
"""Lines that are read in one go: at most so many, and no more after so many bytes."""

BYTES_PER_SLOT = 2 << 20
"""A line takes one more place of `--batches.concurrency` for each."""

BUSY = 503
RETRIES_S = (2.0, 10.0, 30.0)
"""Pauses before a line is sent again that was answered with 503. It is then the only one that is sent again: should it
be the reason why the engine process ends, others are not answered with 503 each time."""

MODEL_WAIT_S = 5.0
"""Pause between two looks for models that a batch needs and that are not served now."""

TROUBLE_WAIT_S = 30.0
"""Pause after a disk or a database that failed."""


class Runner:
    """Runs the batches of a service."""

    def __init__(self, service: BatchService, context: RouterContext) -> None:
        self._service, self._context = service, context
        self._num_slots = service.limits.concurrency
        self._slots = asyncio.Semaphore(self._num_slots)
        self._turn = asyncio.Lock()  # first come, first served: batches take turns
        self._checking = asyncio.Semaphore(1)
        self._retrying = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}
        self._unsaved: list[tuple[Result | None, asyncio.Future[None]]] = []
        self._saving: asyncio.Task[None] | None = None

    def start(self, batch_id: str) -> None:
        """Begin or continue a batch."""
        self._stops[batch_id] = asyncio.Event()
        task = asyncio.create_task(self._run(batch_id))
        self._tasks[batch_id] = task
        task.add_done_callback(lambda _: (self._tasks.pop(batch_id, None), self._stops.pop(batch_id, None)))

    def stop(self, batch_id: str) -> None:
        """Let a batch notice that it was cancelled."""
        if batch_id in self._stops:
            self._stops[batch_id].set()

    async def close(self) -> None:
        """End all work; the batches continue at the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._saving is not None:
            await asyncio.gather(self._saving, return_exceptions=True)

    async def _run(self, batch_id: str) -> None:
        while True:
            try:
                await self._advance(batch_id)
                return
            except (OSError, sqlite3.Error):
                log.exception("batch %s pauses", batch_id)
                await asyncio.sleep(TROUBLE_WAIT_S)

    async def _advance(self, batch_id: str) -> None:
        batch = await self._service.batch(batch_id)
        if batch.status == "validating":
            async with self._checking:
                batch = await self._check(batch)
        if batch.status == "in_progress":
            batch = await self._answer_lines(batch)
        if batch.outcome:
            await self._save(None)  # after the answers that came before
            await finish(self._service, batch)

    async def _check(self, batch: StoredBatch) -> StoredBatch:
        path = self._service.folder.path(batch.input_file_id)
        found = await asyncio.to_thread(check_lines, path, batch.endpoint, self._service.limits.max_lines)
        served = self._served()

        def checked(now: StoredBatch) -> StoredBatch:
            if now.status != "validating":  # it was cancelled
                return now
            if found.errors:
                return now.moved("failed", errors=found.errors)
            return now.moved("in_progress", total=found.total, models=[m for m in found.models if m in served])

        return await self._service.update(batch.id, checked)

    def _served(self) -> set[str]:
        """The names of models and adapters that requests may use now."""
        models = {name for info in self._context.models() for name in (info.name, *info.aliases)}
        return models | {adapter.name for adapter in self._context.adapters()}

    async def _answer_lines(self, batch: StoredBatch) -> StoredBatch:
        """Answer the lines without an answer, until all have one or the batch is cancelled or expires."""
        stop = asyncio.create_task(self._stops[batch.id].wait())
        lines = asyncio.create_task(self._send_lines(batch))
        left_s = max(0.0, batch.expires_at - self._service.now())
        try:
            await asyncio.wait({stop, lines}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            outcome = "completed" if lines.done() else "cancelled" if stop.done() else "expired"
        finally:
            for task in (stop, lines):
                task.cancel()
            await asyncio.gather(stop, lines, return_exceptions=True)
        error = lines.exception() if outcome == "completed" else None
        if isinstance(error, TooLarge):
            wrong = [LineError("storage_full", error.message)]
            return await self._service.update(batch.id, lambda b: b.moved("finalizing", outcome="failed", errors=wrong))
        if error is not None:
            raise error
        return await self._service.update(batch.id, _ended(outcome))

    async def _send_lines(self, batch: StoredBatch) -> None:
        while not set(batch.models) <= self._served():
            await asyncio.sleep(MODEL_WAIT_S)
        try:
            async with asyncio.TaskGroup() as group:
                async for number, line in self._unanswered(batch):
                    num_slots = await self._acquire(len(line.body))
                    task = group.create_task(self._answer(batch, number, line))
                    task.add_done_callback(partial(self._release, num_slots))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _acquire(self, num_bytes: int) -> int:
        """Wait for the slots of a line: more than one for a large line, which bounds the memory of all."""
        wanted, held = min(1 + num_bytes // BYTES_PER_SLOT, self._num_slots), 0
        try:
            async with self._turn:
                while held < wanted:
                    await self._slots.acquire()
                    held += 1
        except BaseException:
            self._release(held)
            raise
        return wanted

    def _release(self, count: int, _: object = None) -> None:
        for _ in range(count):
            self._slots.release()

    async def _unanswered(self, batch: StoredBatch) -> AsyncIterator[tuple[int, BatchLine]]:
        answered = await self._service.call(lambda: self._service.store.answered(batch.id))
        lines = read_lines(self._service.folder.path(batch.input_file_id))
        left = (line for line in lines if line[0] not in answered)
        while block := await asyncio.to_thread(_block, left, batch.endpoint):
            for line in block:
                yield line

    async def _answer(self, batch: StoredBatch, number: int, line: BatchLine) -> None:
        """Answer one line and store the answer."""
        client = background(batch.owner)
        answer = await self._context.post(line.url, line.body, client)
        for pause_s in RETRIES_S:
            if answer.status != BUSY:
                break
            async with self._retrying:
                await asyncio.sleep(pause_s)
                answer = await self._context.post(line.url, line.body, client)
        request_id = answer.headers.get("x-request-id", "")
        content = answer_line(line.custom_id, answer.status, answer.body, request_id)
        await self._save(Result(batch.id, number, answer.status < 400, content))

    async def _save(self, result: Result | None) -> None:
        """Store an answer, together with those that arrive while others are being stored. None: only wait for them."""
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unsaved.append((result, saved))
        if self._saving is None or self._saving.done():
            self._saving = asyncio.create_task(self._save_all())
        await saved

    async def _save_all(self) -> None:
        while self._unsaved:
            rows, self._unsaved = self._unsaved, []
            error: Exception | None = None
            try:
                await self._service.save_results([result for result, _ in rows if result is not None])
            except (OSError, sqlite3.Error, QuireError) as failure:
                error = failure
            for _, saved in rows:
                if saved.done():  # its batch was cancelled
                    continue
                if error is None:
                    saved.set_result(None)
                else:
                    saved.set_exception(error)


def _block(lines: Iterator[tuple[int, bytes]], endpoint: str) -> list[tuple[int, BatchLine]]:
    """The next lines, which were checked before."""
    block: list[tuple[int, BatchLine]] = []
    num_bytes = 0
    for number, text in islice(lines, BLOCK_LINES):
        block.append((number, parse_line(text, (endpoint,))))
        num_bytes += len(text)
        if num_bytes >= BLOCK_BYTES:
            break
    return block


def _ended(outcome: str) -> Callable[[StoredBatch], StoredBatch]:
    """Moves a batch on that ended with `outcome`, unless it was cancelled meanwhile."""

    def ended(now: StoredBatch) -> StoredBatch:
        return now if now.status == "cancelling" else now.moved("finalizing", outcome=outcome)

    return ended

"""Streams a generation job: its text deltas become events, and the events an HTTP response."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from fastapi import Request as HttpRequest
from starlette.responses import Response

from quire.server.http.sse import DONE, EventStream
from quire.server.jobs.generation import GenerationJob
from quire.server.process.workers import Workers
from quire.text.outputs.outputs import TextDelta
from quire.text.tokenizer.long_texts import ShouldContinue


class StreamEncoder(Protocol):
    """Turns the text deltas of a job into events."""

    job: GenerationJob

    def events_for(self, number: int, delta: TextDelta) -> bytes:
        """The events for a text delta of prompt `number`, or b""."""
        ...

    def final_event(self) -> bytes:
        """The last event, or b""."""
        ...


async def stream_response(request: HttpRequest, encoder: StreamEncoder, workers: Workers | None = None) -> Response:
    """Run the job of `encoder` and return the response that streams its events.

    Returns when the first event is there, so that an earlier error still gets its HTTP status. workers: encode the
    events in worker threads, for streams in which some events take long to encode.
    """

    async def run(put: Callable[[bytes], None]) -> None:
        events_for = encoder.events_for
        if workers is None:
            await encoder.job.run(lambda number, delta: put(events_for(number, delta)))
        else:
            await _run_with_workers(encoder, workers, put)
        put(encoder.final_event() + DONE)

    stream = EventStream(run)
    await stream.wait_first(request.receive)
    return stream


async def _run_with_workers(encoder: StreamEncoder, workers: Workers, put: Callable[[bytes], None]) -> None:
    """Run the job; `workers` encode its events, in order."""
    deltas: asyncio.Queue[tuple[int, TextDelta] | None] = asyncio.Queue()

    async def encode_all() -> None:
        while (delta := await deltas.get()) is not None:
            put(await workers.run(partial(_encode, encoder, *delta)))

    encoding = asyncio.create_task(encode_all())
    try:
        await encoder.job.run(lambda number, delta: deltas.put_nowait((number, delta)))
        deltas.put_nowait(None)
        await encoding
    finally:
        encoding.cancel()


def _encode(encoder: StreamEncoder, number: int, delta: TextDelta, _: ShouldContinue) -> bytes:
    return encoder.events_for(number, delta)

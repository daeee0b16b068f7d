"""The generations behind one HTTP request: one engine request per prompt, from submission to text.

It knows neither routes nor wire shapes. Whoever leaves early — a client that is gone, a stream that
broke, a shutdown — leaves nothing running in the engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from quire.errors import BadRequest, Overloaded, QuireError
from quire.server.engines import Client
from quire.server.inflight import InFlight
from quire.server.metrics import Metrics
from quire.server.sse import settle
from quire.server.telemetry import Telemetry
from quire.server.track import Track
from quire.text.inputs import for_engine
from quire.text.outputs import Collector, Piece, RequestOutput
from quire.text.tokenizer import Tokenizer
from quire.types import Delta, Request

Pieces = list[tuple[int, Piece]]
"""What arrived together: (number of the prompt, piece of text)."""


class Job:
    """Runs `requests` on one model and turns their deltas into text."""

    def __init__(
        self,
        client: Client,
        model: str,
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        requests: Sequence[Request],
        inflight: InFlight,
        telemetry: Telemetry,
        metrics: Metrics,
    ) -> None:
        self.requests = requests
        self.collectors = [Collector(request, tokenizer, eos_ids) for request in requests]
        self.tracks = [Track(request, model) for request in requests]
        self._numbers = {request.id: number for number, request in enumerate(requests)}
        self._client = client
        self._model = model
        self._inflight = inflight
        self._telemetry = telemetry
        self._metrics = metrics
        self._error: QuireError | None = None
        self._waiting: asyncio.Task[object] | None = None

    async def results(self) -> list[RequestOutput]:
        """Run to the end; one output per prompt."""
        async with aclosing(self.pieces()) as batches:
            async for _ in batches:
                pass
        return [collector.result() for collector in self.collectors]

    async def pieces(self) -> AsyncGenerator[Pieces]:
        """Text as it comes. Closing the iterator aborts what still runs."""
        self._inflight.add(self)
        stream = self._run(self.requests[0]) if len(self.requests) == 1 else self._merged()
        try:
            while True:
                if self._error is not None:
                    raise self._error
                self._waiting = asyncio.current_task()
                try:
                    deltas = await stream.__anext__()
                except StopAsyncIteration:
                    break
                except asyncio.CancelledError:
                    self._raise_if_stopped()
                    raise
                self._waiting = None
                number = self._numbers[deltas[0].request_id]
                pieces = self._push(number, deltas)
                if self.collectors[number].aborts:
                    await self._abort_stopped(self.collectors[number])
                if pieces:
                    yield pieces
        except (Overloaded, BadRequest) as error:
            self._refused("queue_full" if isinstance(error, Overloaded) else "bad_request")
            raise
        except QuireError:
            self._end_tracks("error")
            raise
        finally:
            self._waiting = None
            self._inflight.remove(self)
            await stream.aclose()
            await self._abort_unfinished()
            self._end_tracks("abort")

    def stop(self, error: QuireError) -> None:
        """End from outside: whoever iterates over `pieces` gets `error`."""
        self._error = error
        if self._waiting is not None:
            self._waiting.cancel()

    def _raise_if_stopped(self) -> None:
        """The waiting was cancelled: raise the error of `stop` if that asked for it, and nobody else did."""
        if self._error is not None and self._waiting is not None and self._waiting.uncancel() == 0:
            raise self._error from None

    def _run(self, request: Request) -> AsyncGenerator[Sequence[Delta]]:
        return self._client.generate(self._model, for_engine(request))

    async def _merged(self) -> AsyncGenerator[Sequence[Delta]]:
        """What comes for any of the requests; deltas that come together are of one."""
        queue: asyncio.Queue[Sequence[Delta] | Exception | None] = asyncio.Queue()

        async def pump(request: Request) -> None:
            try:
                async with aclosing(self._run(request)) as stream:
                    async for deltas in stream:
                        queue.put_nowait(deltas)
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        pumps = [asyncio.create_task(pump(request)) for request in self.requests]
        try:
            running = len(pumps)
            while running:
                item = await queue.get()
                if item is None:
                    running -= 1
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield item
        finally:
            for task in pumps:
                task.cancel()
            await settle(*pumps)

    def _push(self, number: int, deltas: Sequence[Delta]) -> Pieces:
        collector, track = self.collectors[number], self.tracks[number]
        pieces: Pieces = []
        track.arrived(deltas)
        for delta in deltas:
            for piece in collector.push(delta):
                if piece.finish_reason is not None:
                    track.reason = piece.finish_reason
                pieces.append((number, piece))
        return pieces

    async def _abort_stopped(self, collector: Collector) -> None:
        """Let the engine end the seqs in which a stop string was found."""
        for request_id, index in collector.take_aborts():
            await self._client.abort(request_id, index)

    async def _abort_unfinished(self) -> None:
        for request, collector in zip(self.requests, self.collectors, strict=True):
            if not collector.done:
                await self._client.abort(request.id)

    def _refused(self, reason: str) -> None:
        """The engine did not take it: that is a rejection, and no request that ended."""
        self._metrics.rejected(self._model, reason)
        for track in self.tracks:
            track.ended = track.ended or not track.heard

    def _end_tracks(self, reason: str) -> None:
        for track, collector in zip(self.tracks, self.collectors, strict=True):
            if not track.ended:
                self._telemetry.finished(*track.end(None if collector.done else reason))

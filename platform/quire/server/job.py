"""The generations behind one HTTP request: one engine request per prompt, from submission to text.

It knows neither routes nor wire shapes. Whoever leaves early — a client that is gone, a stream that
broke, a shutdown — leaves nothing running in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from quire.errors import BadRequest, Overloaded, QuireError
from quire.server.engines import Client
from quire.server.inflight import InFlight
from quire.server.metrics import Metrics
from quire.server.stopping import Stopping
from quire.server.telemetry import Telemetry
from quire.server.track import Tracks
from quire.text.inputs import for_engine
from quire.text.outputs import Collector, LogprobsIn, Piece, RequestOutput
from quire.text.tokenizer import Tokenizer
from quire.types import Delta, Request

Take = Callable[[int, Piece], None]
"""Takes a piece of text that answers the prompt of this number."""


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
        streams: bool = False,
    ) -> None:
        """streams: the pieces that `run` gives are sent, else what `results` says."""
        self.requests = requests
        needed: LogprobsIn = "pieces" if streams else "result"
        self.collectors = [Collector(request, tokenizer, eos_ids, needed) for request in requests]
        self.tracks = Tracks(requests, model, telemetry, metrics)
        self._numbers = {request.id: number for number, request in enumerate(requests)}
        self._client = client
        self._model = model
        self._inflight = inflight
        self._stopping = Stopping()

    async def results(self) -> list[RequestOutput]:
        """Run to the end; one output per prompt."""
        await self.run(lambda number, piece: None)
        return self.outputs()

    def outputs(self) -> list[RequestOutput]:
        """One output per prompt, of what has come so far."""
        return [collector.result() for collector in self.collectors]

    async def run(self, take: Take) -> None:
        """Run to the end; `take` gets text as it comes. What it raises ends everything; cancelling aborts what runs."""
        self._inflight.add(self)
        requests = [for_engine(request) for request in self.requests]
        try:
            with self._stopping:
                await self._client.run(self._model, requests, partial(self._push, take))
        except (Overloaded, BadRequest) as error:
            self.tracks.refused(error)
            raise
        except QuireError:
            self._end_tracks("error")
            raise
        finally:
            self._inflight.remove(self)
            self._end_tracks("abort")

    def stop(self, error: QuireError) -> None:
        """End from outside: whoever waits for `run` gets `error`."""
        self._stopping.stop(error)

    def _push(self, take: Take, delta: Delta) -> None:
        number = self._numbers[delta.request_id]
        collector, track = self.collectors[number], self.tracks[number]
        track.arrived(delta)
        for piece in collector.push(delta):
            if piece.finish_reason is not None:
                track.reason = piece.finish_reason
            take(number, piece)
        if collector.aborts:  # a stop string was found: the engine does not know
            for request_id, index in collector.take_aborts():
                self._client.abort(request_id, index)

    def _end_tracks(self, reason: str) -> None:
        self.tracks.end(reason, [collector.done for collector in self.collectors])

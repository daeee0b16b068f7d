"""The pooled prompts behind one HTTP request: an engine request for each, all at once, one result of each.

It knows neither routes nor wire shapes. Whoever leaves early leaves nothing running in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.errors import BadRequest, Overloaded, QuireError
from quire.pooling import Pooled
from quire.server.engines import Client
from quire.server.inflight import InFlight
from quire.server.metrics import Metrics
from quire.server.stopping import Stopping
from quire.server.telemetry import Telemetry
from quire.server.track import Tracks
from quire.types import Delta, Request


class PoolingJob:
    """Runs `requests` on one model. num_cached_tokens: prompt tokens that had been computed before."""

    def __init__(
        self,
        client: Client,
        model: str,
        requests: Sequence[Request],
        inflight: InFlight,
        telemetry: Telemetry,
        metrics: Metrics,
    ) -> None:
        self.requests = requests
        self.num_cached_tokens = 0
        self._client, self._model, self._inflight = client, model, inflight
        self._tracks = Tracks(requests, model, telemetry, metrics)
        self._numbers = {request.id: number for number, request in enumerate(requests)}
        self._results: list[Pooled | None] = [None] * len(requests)
        self._stopping = Stopping()

    @property
    def num_prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(len(request.prompt.token_ids) for request in self.requests)

    async def results(self) -> list[Pooled]:
        """Run to the end; what was made of each prompt. The first error of one ends all."""
        self._inflight.add(self)
        try:
            with self._stopping:
                await self._client.run(self._model, self.requests, self._take)
        except (Overloaded, BadRequest) as error:
            self._tracks.refused(error)
            raise
        except QuireError:
            self._end_tracks("error")
            raise
        finally:
            self._inflight.remove(self)
            self._end_tracks("abort")
        return [self._result(number) for number in range(len(self.requests))]

    def stop(self, error: QuireError) -> None:
        """End from outside: whoever waits for `results` gets `error`."""
        self._stopping.stop(error)

    def _take(self, delta: Delta) -> None:
        number = self._numbers[delta.request_id]
        self._tracks[number].arrived(delta)
        self.num_cached_tokens += delta.num_cached_tokens or 0
        if delta.finish_reason is not None:
            self._tracks[number].reason = delta.finish_reason
        if delta.pooled is not None:
            self._results[number] = delta.pooled

    def _result(self, number: int) -> Pooled:
        result = self._results[number]
        if result is None:
            raise QuireError("A prompt ended before it was pooled.")
        return result

    def _end_tracks(self, reason: str) -> None:
        self._tracks.end(reason, [result is not None for result in self._results])

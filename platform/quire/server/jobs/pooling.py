"""Runs the pooling requests of one HTTP request, one per prompt, all at once.

When the HTTP request ends early, its engine requests are aborted.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from quire.errors import QuireError
from quire.params.pooling import PoolingResult
from quire.server.http.cancel_scope import CancelScope
from quire.server.jobs.active import ActiveJobs
from quire.server.metrics.metrics import Metrics
from quire.server.metrics.request_timers import RequestTimers
from quire.server.metrics.telemetry import Telemetry
from quire.server.service.client_protocol import ClientProtocol
from quire.server.tenants.ticket import Ticket
from quire.types import Request, SeqDelta


class PoolingJob:
    """Runs `requests` on one model. num_cached_tokens: prompt tokens found in the prefix cache."""

    def __init__(
        self,
        client: ClientProtocol,
        model: str,
        requests: Sequence[Request],
        inflight: ActiveJobs,
        telemetry: Telemetry,
        metrics: Metrics,
        ticket: Ticket | None = None,
    ) -> None:
        """ticket: has admitted the requests of a tenant."""
        self._ticket = ticket
        self.requests = requests
        self.num_cached_tokens = 0
        self._client, self.model, self._inflight = client, model, inflight
        self._timers = RequestTimers(requests, model, telemetry, metrics)
        self._numbers = {request.id: number for number, request in enumerate(requests)}
        self._results: list[PoolingResult | None] = [None] * len(requests)
        self._stopping = CancelScope()

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt.token_ids) for request in self.requests)

    async def results(self) -> list[PoolingResult]:
        """Run to the end and return one result per prompt. The first error ends all requests."""
        counting = self._ticket.running(self.requests, lambda: 0) if self._ticket else nullcontext()
        with counting, self._inflight.running(self), self._timers.running(self._done), self._stopping:
            await self._client.run(self.model, self.requests, self._on_delta)
        await self._timers.stored()
        return [self._result(number) for number in range(len(self.requests))]

    def stop(self, error: QuireError) -> None:
        """End the job from another task: `results` raises `error`."""
        self._stopping.stop(error)

    def _on_delta(self, delta: SeqDelta) -> None:
        number = self._numbers[delta.request_id]
        self._timers[number].on_delta(delta)
        self.num_cached_tokens += delta.num_cached_tokens or 0
        if delta.finish_reason is not None:
            self._timers[number].reason = delta.finish_reason
        if delta.pooled is not None:
            self._results[number] = delta.pooled

    def _result(self, number: int) -> PoolingResult:
        result = self._results[number]
        if result is None:
            raise QuireError("A prompt ended before it was pooled.")
        return result

    def _done(self) -> list[bool]:
        return [result is not None for result in self._results]

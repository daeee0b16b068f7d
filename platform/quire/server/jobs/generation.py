"""Runs the engine requests of one HTTP request, one per prompt, and turns their tokens into text.

When the HTTP request ends early (the client disconnects, the stream breaks, the server shuts down), its engine requests
are aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

from quire.errors import QuireError
from quire.server.http.cancel_scope import CancelScope
from quire.server.jobs.active import ActiveJobs
from quire.server.metrics.metrics import Metrics
from quire.server.metrics.request_timers import RequestTimers
from quire.server.metrics.telemetry import Telemetry
from quire.server.service.client_protocol import ClientProtocol
from quire.server.tenants.ticket import Ticket
from quire.text.inputs.inputs import to_engine_request
from quire.text.outputs.outputs import Collector, LogprobsIn, RequestOutput, TextDelta
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Request, SeqDelta

OnText = Callable[[int, TextDelta], None]
"""Called with the number of a prompt and the next text that answers it."""


class GenerationJob:
    """Runs `requests` on one model and turns their deltas into text.

    collectors: the output of each request so far.
    """

    def __init__(
        self,
        client: ClientProtocol,
        model: str,
        tokenizer: Tokenizer,
        eos_ids: Sequence[int],
        requests: Sequence[Request],
        inflight: ActiveJobs,
        telemetry: Telemetry,
        metrics: Metrics,
        streams: bool = False,
        ticket: Ticket | None = None,
    ) -> None:
        """streams: the caller uses the text deltas that `run` gives, not the outputs of `results`. ticket: has admitted
        the requests of a tenant."""
        self._ticket = ticket
        self.requests = requests
        needed: LogprobsIn = "deltas" if streams else "result"
        self.collectors = [Collector(request, tokenizer, eos_ids, needed) for request in requests]
        self._timers = RequestTimers(requests, model, telemetry, metrics, streams)
        self.shows_output = True
        """Whether the client gets the tokens; else they do not count as output."""
        self._numbers = {request.id: number for number, request in enumerate(requests)}
        self._client = client
        self.model = model
        self._inflight = inflight
        self._stopping = CancelScope()

    async def results(self) -> list[RequestOutput]:
        """Run to the end and return one output per prompt."""
        await self.run(lambda number, delta: None)
        return self.outputs()

    def outputs(self) -> list[RequestOutput]:
        """One output per prompt, with the text so far."""
        return [collector.result() for collector in self.collectors]

    async def run(self, on_text: OnText) -> None:
        """Run to the end and call `on_text` for each text delta.

        An exception of `on_text`, or a cancellation, aborts all engine requests.
        """
        requests = [to_engine_request(request) for request in self.requests]
        counting = self._ticket.running(self.requests, self._num_generated) if self._ticket else nullcontext()
        with counting, self._inflight.running(self), self._timers.running(self._done, self._num_output), self._stopping:
            await self._client.run(self.model, requests, partial(self._push, on_text))
        await self._timers.stored()

    def stop(self, error: QuireError) -> None:
        """End the job from another task: `run` raises `error`."""
        self._stopping.stop(error)

    def _push(self, on_text: OnText, delta: SeqDelta) -> None:
        number = self._numbers[delta.request_id]
        collector, timer = self.collectors[number], self._timers[number]
        timer.on_delta(delta)
        for text in collector.push(delta):
            if text.finish_reason is not None:
                timer.reason = text.finish_reason
            on_text(number, text)
        if collector.aborts:  # stop strings are found here, not in the engine
            for request_id, index in collector.take_aborts():
                self._client.abort(request_id, index)

    def _num_output(self) -> list[int]:
        return [collector.num_output_tokens if self.shows_output else 0 for collector in self.collectors]

    def _num_generated(self) -> int:
        return sum(collector.num_output_tokens for collector in self.collectors)

    def _done(self) -> list[bool]:
        return [collector.done for collector in self.collectors]

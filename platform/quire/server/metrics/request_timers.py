"""Measures the times of engine requests in the API process, and reports them when the requests end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from quire.errors import BadRequest, Overloaded, QuireError
from quire.server.accounting.records import Ending, record_of
from quire.server.metrics.metrics import Metrics, Timings
from quire.server.metrics.telemetry import Telemetry
from quire.types import ComputeCost, Request, RequestSummary, SeqDelta
from quire.types.usage import Outcome


class RequestTimer:
    """Times and token counts of one request. `reason`: finish reason of its last seq."""

    def __init__(self, request: Request, model: str) -> None:
        self.request = request
        self._model = model
        self._arrival_s = time.perf_counter()
        self._first_s: float | None = None
        self._last_s = self._arrival_s
        self._last_by_index: dict[int, float] = {}
        self._gaps_s: list[float] = []
        self._has_several = request.params.num_seqs > 1
        self._counts: dict[int, int] = {}  # generated tokens by seq, if there are several
        self.reason = "abort"
        self._queue_s: float | None = None
        self.num_generated = 0
        self.num_cached = 0
        self.cost = ComputeCost()
        self.started = False
        self.ended = False

    @property
    def age_s(self) -> float:
        """Time since the request arrived."""
        return time.perf_counter() - self._arrival_s

    def on_delta(self, delta: SeqDelta) -> None:
        """Record a delta at the time of its arrival."""
        now = self._last_s = time.perf_counter()
        if not self.started:
            self.started = True
            self.num_cached = delta.num_cached_tokens or 0
            self._queue_s = delta.queue_s
        if delta.cost is not None:
            self.cost = delta.cost
        count = len(delta.token_ids)
        if not count:
            return
        self.num_generated += count
        if self._has_several:
            self._counts[delta.index] = self._counts.get(delta.index, 0) + count
        before = self._last_by_index.get(delta.index)
        if before is not None:
            self._gaps_s.append((now - before) / count)
        elif self._first_s is None:
            self._first_s = now
        self._last_by_index[delta.index] = now

    def end(self, reason: str | None) -> tuple[RequestSummary, Timings]:
        """Mark the request as ended; `reason` None: the finish reason of its last delta."""
        self.ended = True
        first = None if self._first_s is None else self._first_s - self._arrival_s
        queue = self._queue_s
        params = self.request.params
        summary = RequestSummary(
            request_id=self.request.id,
            model=self._model,
            adapters=tuple(use.ref.name for use in self.request.adapters),
            finish_reason=reason or self.reason,
            num_prompt_tokens=len(self.request.prompt.token_ids),
            num_cached_tokens=self.num_cached,
            num_generated_tokens=self.num_generated,
            n=params.num_seqs,
            max_tokens=params.max_tokens,
            queue_s=queue,
            prefill_s=None if first is None or queue is None else max(0.0, first - queue),
            decode_s=None if self._first_s is None else self._last_s - self._first_s,
            e2e_s=self._last_s - self._arrival_s,
            first_token_s=first,
            client=self.request.client,
        )
        longest = max(self._counts.values(), default=0) if self._counts else self.num_generated
        return summary, Timings(token_gaps_s=tuple(self._gaps_s), longest=longest)


class RequestTimers:
    """Timers of the requests of one call. Each request is reported once, and traced if the server traces."""

    def __init__(
        self, requests: Sequence[Request], model: str, telemetry: Telemetry, metrics: Metrics, streams: bool = False
    ) -> None:
        """streams: the output is sent while it is generated."""
        self._timers = [RequestTimer(request, model) for request in requests]
        self._model, self._telemetry, self._metrics = model, telemetry, metrics
        self._tracing = telemetry.tracing
        self._scope = self._tracing.scope(streams) if self._tracing else None

    def __getitem__(self, number: int) -> RequestTimer:
        return self._timers[number]

    @contextmanager
    def running(
        self, done: Callable[[], Sequence[bool]], num_output: Callable[[], Sequence[int]] | None = None
    ) -> Iterator[None]:
        """While the call runs; then all requests are reported.

        done: which of them have finished. num_output: tokens of each that the client got, for accounts; None: all.
        """

        def end(reason: str, error: QuireError | None = None) -> None:
            counts = num_output() if num_output else [timer.num_generated for timer in self._timers]
            self._end(reason, done(), counts, error)

        try:
            yield
        except (Overloaded, BadRequest) as error:
            self._on_rejected(error)
            raise
        except QuireError as error:
            end("error", error)
            raise
        finally:
            end("abort")

    def _on_rejected(self, error: Overloaded | BadRequest) -> None:
        """Count a rejection; requests that have not started are not reported as ended."""
        self._metrics.rejected(self._model, "queue_full" if isinstance(error, Overloaded) else "bad_request")
        for timer in self._timers:
            timer.ended = timer.ended or not timer.started

    async def stored(self) -> None:
        """Wait until the ended requests are in the accounts, if these are stored; see `UsageLedger.stored`."""
        await self._telemetry.usage.stored()

    def _end(
        self, reason: str, done: Sequence[bool], num_output: Sequence[int], error: QuireError | None = None
    ) -> None:
        """Report all requests: with their own finish reason if `done`, otherwise with `reason` and `error`."""
        outcome: Outcome = "failed" if reason == "error" else "aborted"
        records = []
        for timer, finished, count in zip(self._timers, done, num_output, strict=True):
            if not timer.ended:
                summary, timings = timer.end(None if finished else reason)
                self._telemetry.finished(summary, timings, self._record(timer, summary, None if finished else error))
                ended = Ending("finished" if finished else outcome, timer.started, count, timer.cost)
                records.append(record_of(timer.request, summary, ended))
        if records:
            self._telemetry.usage.add(records)

    def _record(
        self, timer: RequestTimer, summary: RequestSummary, error: QuireError | None
    ) -> Callable[[], None] | None:
        """A function that makes the spans of a request; None if it is not traced."""
        if self._tracing is None or self._scope is None:
            return None
        end_ns = time.time_ns()
        begin_ns = end_ns - int(timer.age_s * 1e9)
        return partial(self._tracing.record, self._scope, timer.request, summary, (begin_ns, end_ns), error)

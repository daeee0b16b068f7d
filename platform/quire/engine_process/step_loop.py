"""The step loop: passes requests to engines, runs one step of one model at a time, and sends the outputs.

One thread runs all models. When a step fails, only the requests of that model fail.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quire.engine_process.adapter_messages import AdapterRegistryProtocol
from quire.engine_process.pacing.background import BackgroundPacer
from quire.engine_process.pacing.kv_balance import KvBalance
from quire.engine_process.pacing.time_slicing import TimeSlicer
from quire.engine_process.wire.error_info import ErrorInfo, to_error_info
from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.protocol import Abort, RequestRejected, StepOutputs, Submit
from quire.errors import NotFound, QuireError
from quire.types import EngineStats, ModelInfo, Request, SeqDelta

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""After this many failed steps of a model in a row the process is restarted."""

MIN_PAUSE_S, MAX_PAUSE_S = 0.001, 0.02
"""Pauses of a model whose step computed nothing although there is work: it waits for an adapter, or for a grammar that
another thread compiles, which needs the GIL. Each pause is twice as long as the one before."""


class StepsKeepFailing(QuireError):
    """A model failed `MAX_FAILED_STEPS` steps in a row."""


class EngineProtocol(Protocol):
    """The methods of an engine that the loop calls; `quire.engine.engine.Engine` implements it."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def adapters(self) -> AdapterRegistryProtocol:
        """The adapters of its model; any thread may load them."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do."""
        ...

    @property
    def failed_steps(self) -> int:
        """Failed steps since the last successful one, including those that raised."""
        ...

    @property
    def num_generating(self) -> int:
        """Running seqs, not in the background, that compute one token in each step."""
        ...

    @property
    def num_step_tokens(self) -> int:
        """Tokens computed by the latest step."""
        ...

    def add(self, request: Request) -> None:
        """Accept a request; raises BadRequest or Overloaded."""
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Drop one seq of a request, or all; unknown ids are ignored."""
        ...

    def step(self, max_tokens: int | None = None, max_background: int = 0) -> list[SeqDelta]:
        """Compute at most `max_tokens` tokens, at most `max_background` for the background beside other requests."""
        ...

    def stats(self) -> EngineStats: ...

    def close(self) -> None:
        """Release the device memory."""
        ...


@dataclass(frozen=True, slots=True)
class _Pause:
    """No step of a model before `until`."""

    seconds: float
    until: float


@dataclass(slots=True)
class _Accepted:
    """A request that an engine accepted; `open`: its seqs that have not ended."""

    model: str
    client: str
    open: set[int]


class StepLoop:
    """The engines by name, their requests in flight, and the time slicing between them."""

    def __init__(
        self,
        send: Callable[[WireMessage], None],
        clock: Callable[[], float] = time.monotonic,
        slicer: TimeSlicer | None = None,
    ) -> None:
        """`send` gets the messages for the API process; `clock` returns seconds."""
        self.engines: dict[str, EngineProtocol] = {}
        self._send, self._clock, self._slicer = send, clock, slicer or TimeSlicer()
        self._accepted: dict[str, _Accepted] = {}
        self._draining: dict[str, Callable[[EngineProtocol], None]] = {}
        self._pauses: dict[str, _Pause] = {}
        self._background = BackgroundPacer(clock)
        self._kv = KvBalance(clock)

    def add(self, engine: EngineProtocol, max_tokens: int) -> None:
        """Serve a model, the steps of which have at most `max_tokens` tokens."""
        name = engine.info.name
        self.engines[name] = engine
        self._slicer.add(name, max_tokens)
        self._kv.add(name, engine)

    def remove(self, name: str, on_removed: Callable[[EngineProtocol], None]) -> None:
        """Accept no more requests for a model; `on_removed` gets its engine when those in flight have ended."""
        self._draining[name] = on_removed
        self._remove_drained()

    def submit(self, message: Submit) -> None:
        """Add a request to its engine, or send back why it was rejected."""
        try:
            if message.model not in self.engines or message.model in self._draining:
                raise NotFound(f"The model `{message.model}` is not loaded.")
            request = message.to_request()
            self.engines[message.model].add(request)
            self._pauses.pop(message.model, None)
        except Exception as error:  # the loop must go on, whatever a request does to its engine
            info = to_error_info(error)
            if info.kind == "QuireError":
                log.exception("Request %s could not be added", message.id, extra={"request_id": message.id})
            self._send(RequestRejected(message.id, info))
            return
        self._accepted[message.id] = _Accepted(message.model, request.client, set(range(request.params.num_seqs)))
        self._background.begin(message.model, request.client)

    def abort(self, message: Abort) -> None:
        """Stop a request or one seq of it."""
        entry = self._accepted.get(message.request_id)
        if entry is None:
            return
        self.engines[entry.model].abort(message.request_id, message.index)
        self._pauses.pop(entry.model, None)
        if message.index is None:
            entry.open.clear()
        self._end(message.request_id, message.index)
        self._remove_drained()

    @property
    def num_busy(self) -> int:
        """The number of models with requests that wait or run."""
        return sum(engine.has_work for engine in self.engines.values())

    def stats(self) -> list[EngineStats]:
        return [engine.stats() for engine in self.engines.values()]

    def step(self, beside_load: bool = False) -> float | None:
        """Run one step of one engine. Returns the seconds to wait before the next one; None: until a message arrives.

        beside_load: whether a model is being loaded. Raises StepsKeepFailing after `MAX_FAILED_STEPS` failed steps of a
        model in a row.
        """
        self._kv.step(self.engines)
        with_work = [name for name, engine in self.engines.items() if engine.has_work]
        pauses = {name: self._pauses[name].until - self._clock() for name in with_work if name in self._pauses}
        ready = self._background.may_step([name for name in with_work if pauses.get(name, 0) <= 0])
        name = self._slicer.next(ready, beside_load)
        if name is None:
            return min(pauses.values(), default=None)
        deltas = self._step(name, ready)
        engine = self.engines[name]
        if deltas:
            self._send(StepOutputs(deltas))
            for delta in deltas:
                if delta.finish_reason is not None:
                    self._end(delta.request_id, delta.index)
            self._remove_drained()
        if engine.failed_steps >= MAX_FAILED_STEPS:
            raise StepsKeepFailing(_failure_message(name, engine.failed_steps, deltas))
        self._pause(name, idle=not deltas and not engine.num_step_tokens)
        return 0

    def _step(self, name: str, ready: Sequence[str]) -> list[SeqDelta]:
        begin, engine = self._clock(), self.engines[name]
        num_generating = engine.num_generating
        others = [other for other in ready if other != name and self.engines[other].num_generating]
        short = self._slicer.limit(name, num_generating, others)
        alone = len(ready) == 1
        limit, max_background = self._background.limits(name, None if alone and not num_generating else short, short)
        try:
            deltas = engine.step(limit, max_background)
        except Exception as error:
            deltas = self._fail(name, error)
        seconds = self._clock() - begin
        self._slicer.record(name, seconds, engine.num_step_tokens, alone, num_generating)
        self._background.record(name, seconds)
        return deltas

    def _pause(self, name: str, idle: bool) -> None:
        """Begin the next pause of a model, or end them after a step that computed something."""
        if not idle:
            self._pauses.pop(name, None)
            return
        before = self._pauses.get(name)
        seconds = MIN_PAUSE_S if before is None else min(2 * before.seconds, MAX_PAUSE_S)
        self._pauses[name] = _Pause(seconds, self._clock() + seconds)

    def _end(self, request_id: str, index: int | None) -> None:
        entry = self._accepted.get(request_id)
        if entry is None:
            return
        if index is not None:
            entry.open.discard(index)
        if not entry.open:
            del self._accepted[request_id]
            self._background.end(entry.model, entry.client)

    def _fail(self, name: str, error: Exception) -> list[SeqDelta]:
        """Abort all requests of an engine whose step raised; returns their last deltas, with the error."""
        log.exception("A step of %s failed", name)
        info = _step_error(name, error)
        deltas = []
        for request_id, entry in self._accepted.items():
            if entry.model == name:
                self.engines[name].abort(request_id)
                deltas += [
                    SeqDelta(request_id=request_id, index=i, finish_reason="error", error=(info.kind, info.message))
                    for i in sorted(entry.open)
                ]
        return deltas

    def _remove_drained(self) -> None:
        busy = {entry.model for entry in self._accepted.values()} if self._draining else set()
        for name in [name for name in self._draining if name not in busy]:
            on_removed = self._draining.pop(name)
            self._slicer.remove(name)
            self._kv.remove(name)
            self._pauses.pop(name, None)
            on_removed(self.engines.pop(name))


def _failure_message(name: str, count: int, deltas: Sequence[SeqDelta]) -> str:
    errors = [delta.error for delta in deltas if delta.error is not None]
    last = f" The last error: {errors[-1][1]}" if errors else ""
    return f"The model `{name}` failed {count} steps in a row.{last}"


def _step_error(name: str, error: Exception) -> ErrorInfo:
    info = to_error_info(error)
    return ErrorInfo(info.kind, f"A step of {name} failed, and its requests were given up: {info.message}")

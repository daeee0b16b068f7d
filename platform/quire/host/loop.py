"""The step loop: takes in what arrived, lets the model whose turn it is take one step, sends what came of it.

One thread, all models. An engine that fails a step loses its requests, not the others theirs. It knows
engines by what it calls on them, and neither sockets nor how a model is loaded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quire.errors import NotFound, QuireError
from quire.host.adapter_desk import Shelf
from quire.host.faults import Fault, fault_of
from quire.host.protocol import Abort, Deltas, Message, Refused, Submit, request_of
from quire.host.turns import Turns
from quire.types import Delta, EngineStats, ModelInfo, Request

log = logging.getLogger(__name__)

MAX_FAILED_STEPS = 3
"""Steps of a model that fail one after another, after which the process is started anew."""

NAP_S = 0.001
"""Pause when engines have work but could do nothing: something outside must happen first."""


class KeepsFailing(QuireError):
    """Steps of a model failed one after another."""


class Steps(Protocol):
    """What the loop needs of an engine (`quire.engine.engine.Engine` is one)."""

    @property
    def info(self) -> ModelInfo:
        """The model it runs."""
        ...

    @property
    def adapters(self) -> Shelf:
        """Its adapters, which any thread may load."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether `step` would do something."""
        ...

    @property
    def failed_steps(self) -> int:
        """Steps that failed since the last that computed something, those included that raised."""
        ...

    def add(self, request: Request) -> None:
        """Accept a request; raises BadRequest or Overloaded."""
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Forget a seq of a request, or all; unknown ids are ignored."""
        ...

    def step(self, max_tokens: int | None = None) -> list[Delta]:
        """Compute at most `max_tokens` tokens."""
        ...

    def stats(self) -> EngineStats:
        """Its figures."""
        ...

    def close(self) -> None:
        """Let go of the device's memory."""
        ...


@dataclass(slots=True)
class _Flight:
    """A request that was accepted and has not ended; `open`: its seqs that have not."""

    model: str
    open: set[int]


class Loop:
    """Engines by name, the requests in flight on them, and whose turn it is."""

    def __init__(
        self, send: Callable[[Message], None], clock: Callable[[], float] = time.monotonic, turns: Turns | None = None
    ) -> None:
        """`send` gets the messages for the API process; `clock` gives seconds."""
        self.engines: dict[str, Steps] = {}
        self._send, self._clock, self._turns = send, clock, turns or Turns()
        self._flights: dict[str, _Flight] = {}
        self._leaving: dict[str, Callable[[Steps], None]] = {}

    def join(self, engine: Steps, least: int, most: int) -> None:
        """Serve a model from now on. `least`, `most`: bounds of a step's tokens beside other models."""
        name = engine.info.name
        self.engines[name] = engine
        self._turns.join(name, least, most)

    def leave(self, name: str, then: Callable[[Steps], None]) -> None:
        """Accept no more requests for a model; `then` gets its engine when those in flight have ended."""
        self._leaving[name] = then
        self._let_go()

    def submit(self, message: Submit) -> None:
        """Hand a request to its engine, or send back why not."""
        try:
            if message.model not in self.engines or message.model in self._leaving:
                raise NotFound(f"The model `{message.model}` is not loaded.")
            request = request_of(message)
            self.engines[message.model].add(request)
        except Exception as error:  # a request must not end the loop, whatever it did to the engine
            fault = fault_of(error)
            if fault.kind == "QuireError":
                log.exception("Request %s could not be added", message.id)
            self._send(Refused(message.id, fault))
            return
        self._flights[message.id] = _Flight(message.model, set(range(request.params.num_seqs)))

    def abort(self, message: Abort) -> None:
        """Stop a request or one seq of it."""
        flight = self._flights.get(message.request_id)
        if flight is None:
            return
        self.engines[flight.model].abort(message.request_id, message.index)
        if message.index is None:
            flight.open.clear()
        self._end(message.request_id, message.index)
        self._let_go()

    def stats(self) -> list[EngineStats]:
        """Figures of every engine."""
        return [engine.stats() for engine in self.engines.values()]

    def step(self) -> float | None:
        """Let one engine step. Seconds to wait before the next: 0, a nap, or None until a message comes.

        Raises KeepsFailing when it was the last of `MAX_FAILED_STEPS` that failed; its requests were given up.
        """
        with_work = [name for name, engine in self.engines.items() if engine.has_work]
        turn = self._turns.next(with_work)
        if turn is None:
            return None
        name, max_tokens = turn
        begin, engine = self._clock(), self.engines[name]
        try:
            deltas = engine.step(max_tokens)
        except Exception as error:
            deltas = self._fail(name, error)
        seconds = self._clock() - begin
        self._turns.took(name, seconds, alone=len(with_work) == 1)
        if deltas:
            self._send(Deltas(deltas))
            for delta in deltas:
                if delta.finish_reason is not None:
                    self._end(delta.request_id, delta.index)
            self._let_go()
        if engine.failed_steps >= MAX_FAILED_STEPS:
            raise KeepsFailing(_failing(name, engine.failed_steps, deltas))
        return NAP_S if not deltas and seconds < NAP_S else 0

    def _end(self, request_id: str, index: int | None) -> None:
        flight = self._flights.get(request_id)
        if flight is None:
            return
        if index is not None:
            flight.open.discard(index)
        if not flight.open:
            del self._flights[request_id]

    def _fail(self, name: str, error: Exception) -> list[Delta]:
        """An engine's step raised: give up its requests. Raises when that cannot be."""
        log.exception("A step of %s failed", name)
        fault = _step_fault(name, error)
        deltas = []
        for request_id, flight in self._flights.items():
            if flight.model == name:
                self.engines[name].abort(request_id)
                deltas += [
                    Delta(request_id=request_id, index=i, finish_reason="error", error=(fault.kind, fault.message))
                    for i in sorted(flight.open)
                ]
        return deltas

    def _let_go(self) -> None:
        busy = {flight.model for flight in self._flights.values()} if self._leaving else set()
        for name in [name for name in self._leaving if name not in busy]:
            then = self._leaving.pop(name)
            self._turns.leave(name)
            then(self.engines.pop(name))


def _failing(name: str, count: int, deltas: Sequence[Delta]) -> str:
    errors = [delta.error for delta in deltas if delta.error is not None]
    last = f" The last error: {errors[-1][1]}" if errors else ""
    return f"The model `{name}` failed {count} steps in a row.{last}"


def _step_fault(name: str, error: Exception) -> Fault:
    fault = fault_of(error)
    return Fault(fault.kind, f"A step of {name} failed, and its requests were given up: {fault.message}")

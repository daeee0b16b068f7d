"""How many threads the load of a model uses while others are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from quire.isolation.idle_thread import compute_when_idle, compute_with

SHARE_BESIDE_STEPS = 0.5
"""Of torch's threads, also at idle priority: a thread that a step has displaced holds the others of a team up."""

PAUSE_BESIDE_LOADS = 0.15
"""Part of the time of steps for which the step loop pauses while a model is loaded, which needs cores and the GIL:
streams that use all cores would hold the load up for as long as they run."""

LEAST_PAUSE_S = 0.002
"""Shorter pauses would mostly pass while the threads of the load wake up. Several steps share a longer one."""


class LoadPauses:
    """The pauses of the step loop beside loads. Among several models they are rarer, as a stream waits for several
    steps, each of which would add its part.
    """

    def __init__(self) -> None:
        self._due_s = 0.0

    def after(self, step_s: float, num_busy: int) -> float:
        """Seconds without a step after one of `step_s`. num_busy: models with work."""
        self._due_s += PAUSE_BESIDE_LOADS * step_s / max(1, num_busy)
        if self._due_s < LEAST_PAUSE_S:
            return 0.0
        pause_s, self._due_s = self._due_s, 0.0
        return pause_s


class Served(Protocol):
    """A model that may compute."""

    @property
    def has_work(self) -> bool: ...


class LoadingThreads:
    """The threads of the one thread that loads models, which calls these methods. engines: those of the step loop."""

    def __init__(self, engines: Mapping[str, Served]) -> None:
        self._engines, self._share = engines, SHARE_BESIDE_STEPS

    def begin(self) -> None:
        """Give the calling thread, which must be new, idle priority."""
        compute_when_idle(self._share)

    def adapt(self) -> None:
        """Use all threads if no model computes now, else some."""
        engines = list(self._engines.values())  # the loop thread may change it
        share = SHARE_BESIDE_STEPS if any(engine.has_work for engine in engines) else 1.0
        if share != self._share:
            self._share = share
            compute_with(share)

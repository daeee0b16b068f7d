"""Detects an engine process whose step loop hangs, from how long it owes an answer to a ping.

The engine process answers between two steps. A long step is therefore silence, and its end is a sign of life.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from quire.isolation.process_state import BUSY, STOPPED, cpu_seconds, thread_states

CHECK_INTERVAL_S = 1.0
"""Pause between two checks."""

FROZEN_AFTER_S = 10.0
"""The default."""

STOPPED_AFTER_S = 1.0
"""A process that a signal has stopped, and that is silent for so long, is frozen already."""

COMPUTING = 0.05
"""A process that computes a long step uses at least this share of one core."""


class Watched(Protocol):
    """What the system says of the watched process."""

    def cpu_s(self) -> float | None:
        """CPU time that it has used, None if unknown."""
        ...

    def states(self) -> frozenset[str]:
        """States of its threads, as `quire.isolation.process_state` has them; empty if unknown."""
        ...


class WatchedProcess:
    """What /proc says of a process of this machine."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def cpu_s(self) -> float | None:
        return cpu_seconds(self._pid)

    def states(self) -> frozenset[str]:
        return thread_states(self._pid)


class Watchdog:
    """Counts the seconds of silence from one `check` to the next. Use from one thread."""

    def __init__(
        self,
        timeout_s: float,
        watched: Watched,
        clock: Callable[[], float] = time.monotonic,
        frozen_after_s: float = FROZEN_AFTER_S,
    ) -> None:
        """timeout_s: maximum silence. frozen_after_s: a process that is silent for so long, uses no CPU, and has no
        thread that waits for a core or a disk counts as frozen.
        """
        self._timeout_s, self._watched, self._clock = timeout_s, watched, clock
        self._frozen_after_s = min(frozen_after_s, timeout_s / 2)
        self.interval_s = min(CHECK_INTERVAL_S, self._frozen_after_s / 6, timeout_s / 4)
        """Seconds between two checks."""
        self.silent_s = 0.0
        """How long the last ping has had no answer."""
        self.frozen = False
        """Whether the process has been silent for some time and does nothing."""
        self._waiting = False
        self._checked_at = self._cpu_before = 0.0

    def start_ping(self) -> bool:
        """Whether to send a ping now; False while the last one has no answer."""
        if self._waiting:
            return False
        self._waiting = True
        self._checked_at = self._clock()
        self._cpu_before = self._watched.cpu_s() or 0.0
        return True

    def answered(self) -> None:
        """Call when the answer to a ping arrives."""
        self._waiting, self.frozen, self.silent_s = False, False, 0.0

    def check(self) -> bool:
        """Whether the silence has reached the timeout. Call it every `interval_s` seconds.

        If this process itself was stopped in between, the pause counts as at most two intervals.
        """
        if not self._waiting:
            return False
        now = self._clock()
        self.silent_s += min(now - self._checked_at, 2 * self.interval_s)
        self._checked_at = now
        if self.silent_s >= min(STOPPED_AFTER_S, self._frozen_after_s):
            self.frozen = self._does_nothing()
        return self.silent_s >= self._timeout_s

    def _does_nothing(self) -> bool:
        states = self._watched.states()
        if states == STOPPED:
            return True
        used = self._watched.cpu_s()
        if self.silent_s < self._frozen_after_s or used is None or states & BUSY:
            return False
        return used - self._cpu_before < COMPUTING * self.silent_s

"""Detects an engine process whose step loop hangs, from how long it owes an answer to a ping.

The engine process answers between two steps. A long step is therefore silence, and its end is a sign of life.
"""

from __future__ import annotations

import time
from collections.abc import Callable

CHECK_INTERVAL_S = 1.0
"""Pause between two checks."""

FROZEN_AFTER_S = 10.0
"""The default."""

COMPUTING = 0.05
"""A process that computes a long step uses at least this share of one core."""


class Watchdog:
    """Counts the seconds of silence from one `check` to the next. Use from one thread."""

    def __init__(
        self,
        timeout_s: float,
        cpu_s: Callable[[], float | None],
        clock: Callable[[], float] = time.monotonic,
        frozen_after_s: float = FROZEN_AFTER_S,
    ) -> None:
        """timeout_s: maximum silence. cpu_s: CPU time that the watched process has used, None if unknown.

        frozen_after_s: a process that is silent for this long and uses no CPU counts as frozen.
        """
        self._timeout_s, self._cpu_s, self._clock = timeout_s, cpu_s, clock
        self._frozen_after_s = min(frozen_after_s, timeout_s / 2)
        self.interval_s = min(CHECK_INTERVAL_S, timeout_s / 4)
        """Seconds between two checks."""
        self.silent_s = 0.0
        """How long the last ping has had no answer."""
        self.frozen = False
        """Whether the process has been silent for some time and uses no CPU."""
        self._waiting = False
        self._checked_at = self._cpu_before = 0.0

    def start_ping(self) -> bool:
        """Whether to send a ping now; False while the last one has no answer."""
        if self._waiting:
            return False
        self._waiting = True
        self._checked_at = self._clock()
        self._cpu_before = self._cpu_s() or 0.0
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
        if self.silent_s >= self._frozen_after_s:
            used = self._cpu_s()
            self.frozen = used is not None and used - self._cpu_before < COMPUTING * self.silent_s
        return self.silent_s >= self._timeout_s

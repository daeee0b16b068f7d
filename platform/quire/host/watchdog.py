"""Watchdog: how long the host has owed an answer, and what that says of its step loop. It knows no processes.

The host answers between two steps, so that a step which takes long is silence, and the end of each is a sign of life.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_EVERY_S = 1.0
"""Pause between two looks."""

FROZEN_AFTER_S = 10.0
"""Silence after which a process that does not compute is taken for frozen."""

COMPUTING = 0.05
"""Share of a core that a process uses at least which computes a long step."""


class Watchdog:
    """Counts the seconds of silence from one `look` to the next. Use from one thread."""

    def __init__(
        self, timeout_s: float, cpu_s: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """timeout_s: most seconds of silence. cpu_s: processor time the watched process has used, None = unknown."""
        self._timeout_s, self._cpu_s, self._clock = timeout_s, cpu_s, clock
        self.every_s = min(LOOK_EVERY_S, timeout_s / 4)
        """How often to look."""
        self.silent_s = 0.0
        """How long an answer has been owed."""
        self.frozen = False
        """Whether the process has been silent for some time and computes nothing."""
        self._owed = False
        self._looked_at = self._cpu_before = 0.0

    def ask(self) -> bool:
        """Whether a question is to be sent now: none while the last one has no answer."""
        if self._owed:
            return False
        self._owed = True
        self._looked_at = self._clock()
        self._cpu_before = self._cpu_s() or 0.0
        return True

    def answered(self) -> None:
        """The answer has come."""
        self._owed, self.frozen, self.silent_s = False, False, 0.0

    def look(self) -> bool:
        """Whether the silence has reached the timeout. To be called every `every_s` seconds.

        A pause of the caller itself, which may have been stopped, counts no more than two looks.
        """
        if not self._owed:
            return False
        now = self._clock()
        self.silent_s += min(now - self._looked_at, 2 * self.every_s)
        self._looked_at = now
        if self.silent_s >= min(FROZEN_AFTER_S, self._timeout_s / 2):
            used = self._cpu_s()
            self.frozen = used is not None and used - self._cpu_before < COMPUTING * self.silent_s
        return self.silent_s >= self._timeout_s

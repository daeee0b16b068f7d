"""Measures the memory of the server's processes, and says how much of the limit is left for models."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

from quire.isolation.process_state import descendants, resident_bytes

MAX_HELPER_BYTES = 64 << 20
"""Smaller processes are not counted: they render templates or read adapter files, and share most of their memory."""

MAX_AGE_S = 0.25
"""How long a measured figure is used: requests end more often than memory changes."""


def measured_bytes() -> int:
    """Resident bytes (RSS) of this process and of the engine processes and ranks that it has started."""
    own = os.getpid()
    started = (resident_bytes(pid) for pid in descendants(own))
    return resident_bytes(own) + sum(size for size in started if size > MAX_HELPER_BYTES)


class MemoryMeter:
    """budget: of all processes, None = none. num_engines: engine processes with all models each.

    measure: returns the bytes that all processes take now. A figure is used for `MAX_AGE_S`, unless it is outdated by a
    load or unload (`forget`).
    """

    def __init__(
        self,
        budget: int | None = None,
        num_engines: int = 1,
        measure: Callable[[], int] = measured_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.budget, self._num_engines, self._measure, self._clock = budget, num_engines, measure, clock
        self._last: tuple[float, int] | None = None

    def measured(self) -> int:
        """Bytes that all processes take."""
        now = self._clock()
        if self._last is None or now - self._last[0] > MAX_AGE_S:
            self._last = now, self._measure()
        return self._last[1]

    def forget(self) -> None:
        """Measure anew the next time."""
        self._last = None

    def limit(self, known: int, used: int) -> float:
        """Bytes that the models may take in each engine process; infinite if that is not known.

        known: the limit that the engine process has computed at its start, 0 = not known. used: what the models take by
        the account. If the processes take more than the account says, that much less is left for models.
        """
        if not known:
            return math.inf
        if self.budget is None:
            return known
        of_processes = self.budget - self._num_engines * known
        more = self.measured() - of_processes - self._num_engines * used
        return known - max(0, more) / self._num_engines

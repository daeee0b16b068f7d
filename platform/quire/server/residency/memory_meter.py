"""Measures the memory of the server's processes, and says how much of the limit is left for models."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from quire.isolation.process_state import descendants, resident_bytes


def measured_bytes() -> int:
    """Resident bytes (RSS) of this process and of all processes that it has started, the engine process among them."""
    own = os.getpid()
    return sum(resident_bytes(pid) for pid in (own, *descendants(own)))


@dataclass(frozen=True, kw_only=True)
class MemoryMeter:
    """budget: of all processes, None = none. num_engines: engine processes with all models each.

    measure: returns the bytes that all processes take now.
    """

    budget: int | None = None
    num_engines: int = 1
    measure: Callable[[], int] = measured_bytes

    def limit(self, known: int, used: int) -> float:
        """Bytes that the models may take in each engine process; infinite if that is not known.

        known: the limit that the engine process has computed at its start, 0 = not known. used: what the models take by
        the account. If the processes take more than the account says, that much less is left for models.
        """
        if not known:
            return math.inf
        if self.budget is None:
            return known
        of_processes = self.budget - self.num_engines * known
        more = self.measure() - of_processes - self.num_engines * used
        return known - max(0, more) / self.num_engines

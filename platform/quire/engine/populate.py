"""Takes the memory of the KV cache from the system before steps need it, beside the steps and within limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Event

from quire.engine.runner import Runner
from quire.engine.system_memory import free_bytes, total_bytes

PAUSE_S = 0.2
"""How long it rests after each piece while there is work; a piece takes a few milliseconds of a core."""

KEEP_FREE = 0.5
"""It goes on only while this share of the machine's memory stays free: a short machine gives memory on use."""

LOOK_EVERY = 32
"""Pieces (of 2 MiB) between two looks at the free memory, each of which reads several files."""


def populate(runner: Runner, stopping: Event, has_work: Callable[[], bool]) -> None:
    """Fill the pages' memory piece by piece, until all is there, memory is short, or `stopping` is set."""
    keep_free, pieces = int(KEEP_FREE * total_bytes()), count()

    def go_on() -> bool:
        if stopping.wait(PAUSE_S if has_work() else 0):
            return False
        return next(pieces) % LOOK_EVERY != 0 or free_bytes() > keep_free

    runner.populate(go_on)

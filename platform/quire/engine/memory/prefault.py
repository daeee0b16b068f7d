"""Allocates the memory of the KV cache from the system before steps need it, in the background and within limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from threading import Event
from typing import TYPE_CHECKING

from quire.engine.memory.system_memory import free_bytes, total_bytes
from quire.engine.runner.model_runner import ModelRunner

if TYPE_CHECKING:
    from quire.engine.elastic.kv_pages import KvPages

PREFAULT_INTERVAL_S = 0.2
"""Pause after each block of 2 MiB while there are requests; a block takes a few milliseconds of a core."""

KEEP_FREE = 0.5
"""Prefaulting stops when less than this share of the machine's memory is free; pages then get memory on first use."""

CHECK_EVERY = 32
"""Blocks between two checks of the free memory, each of which reads several files."""


def prefault(
    runner: ModelRunner, stopping: Event, has_requests: Callable[[], bool], elastic: KvPages | None = None
) -> None:
    """Touch the pages block by block, until all have memory, memory is short, or `stopping` is set.

    has_requests: an engine that has only rows of ended requests left may wait for its next request, so that is no work.
    elastic: the pages, if their number changes; only usable ones get memory.
    """
    keep_free, blocks = int(KEEP_FREE * total_bytes()), count()

    def go_on() -> bool:
        if stopping.wait(PREFAULT_INTERVAL_S if has_requests() else 0):
            return False
        return next(blocks) % CHECK_EVERY != 0 or free_bytes() > keep_free

    if elastic is None:
        runner.kv.prefault(go_on)
    else:
        elastic.memory.prefault(go_on, lambda: elastic.pool.num_pages)

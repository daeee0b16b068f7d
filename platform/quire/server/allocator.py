"""How the C library keeps the memory that this process has freed. glibc only; elsewhere nothing is done.

mallopt(3): blocks above the mmap threshold go back to the system when they are freed. glibc raises the threshold to
the largest block that was freed (up to 32 MiB) unless it is set, so that one large answer would be kept for good.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3), from glibc's malloc.h."""

LARGE_BLOCK = 1 << 20
"""Bytes of a block that the system hands out and gets back by itself."""
MAX_FREE_TOP = 8 << 20
"""Bytes that stay free at the end of the heap."""
NUM_ARENAS = 4
"""Heaps that threads share; by default there are eight for each core."""


def give_freed_memory_back() -> None:
    """Set the limits above for this process. To be called before its threads start."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    mallopt(M_TRIM_THRESHOLD, MAX_FREE_TOP)
    mallopt(M_ARENA_MAX, NUM_ARENAS)

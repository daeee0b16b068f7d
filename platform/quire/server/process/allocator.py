"""Makes glibc's malloc return freed memory to the system; does nothing with another C library.

mallopt(3): blocks above the mmap threshold are returned when they are freed. Unless the threshold is set, glibc raises
it to the largest block freed so far (up to 32 MiB), so that one large response would keep that memory for good.
"""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""Parameters of mallopt(3), from glibc's malloc.h."""

LARGE_BLOCK = 1 << 20
"""Blocks of at least this many bytes are mapped by themselves, and unmapped when freed."""
MAX_FREE_TOP = 1 << 20
"""Free bytes kept at the end of the heap."""
NUM_ARENAS = 2
"""Heaps shared by all threads; glibc's default is eight per core."""


def return_freed_memory() -> None:
    """Set the limits above for this process. Call it before threads start."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
    mallopt(M_TRIM_THRESHOLD, MAX_FREE_TOP)
    mallopt(M_ARENA_MAX, NUM_ARENAS)

"""The numbers of rows for which a step is captured."""

from __future__ import annotations

from bisect import bisect_left

MAX_ROWS = 256
"""Steps with more rows are launched operation by operation: the device, not the launches, decides their time."""


def buckets(max_rows: int) -> tuple[int, ...]:
    """1, 2, 4, 8, 16, 24, 32, … up to `max_rows`, ascending; a step is filled up to the next of them."""
    most = min(max_rows, MAX_ROWS)
    every = [1, 2, 4, *range(8, most, 8)]
    return (*(count for count in every if count < most), *([most] if most > 0 else []))


def bucket_of(rows: int, of: tuple[int, ...]) -> int | None:
    """The smallest of these buckets that holds so many rows; None if none does."""
    at = bisect_left(of, rows)
    return of[at] if rows > 0 and at < len(of) else None

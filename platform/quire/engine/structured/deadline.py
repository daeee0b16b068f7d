"""A deadline that can be paused while something else is awaited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Deadline:
    """A time `seconds` from now. Other threads may read it while one pauses it."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self._paused = False

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, 0 if it has passed."""
        return max(0.0, self._at - time.monotonic())

    def has_passed(self, grace_s: float = 0.0) -> bool:
        """Whether the deadline was more than `grace_s` ago."""
        return not self._paused and time.monotonic() > self._at + grace_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Move the deadline by the time that the block takes."""
        begin, self._paused = time.monotonic(), True
        try:
            yield
        finally:
            self._at += time.monotonic() - begin
            self._paused = False

"""Tokens that were written in place of those of the text that is followed."""

from __future__ import annotations

DECAY = 0.8
CLASSES = (0.2, 0.45, 0.7)
"""Shares up to which a substitution belongs to a class; the last one has no end."""


class Substitutions:
    """By the token before and the token that was awaited; else by the latter alone."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, int], list[float]] = {}  # token, how often it came, how often it or another came
        self._anywhere: dict[int, list[float]] = {}

    def find(self, before: int, awaited: int) -> tuple[int, int] | None:
        """The token that was written last, and the class of how often it is: 0 to 3."""
        entry = self._after.get((before, awaited)) or self._anywhere.get(awaited)
        if entry is None:
            return None
        token_id, came, seen = entry
        share = (came + 0.5) / (seen + 1)
        low, middle, high = CLASSES
        return int(token_id), (share > low) + (share > middle) + (share > high)

    def add(self, before: int, awaited: int, written: int) -> None:
        """`written` came after `before` where `awaited` should have come."""
        entry = self._after.get((before, awaited))
        if entry is not None:
            _count(entry, awaited, written)
        elif awaited != written:
            self._after[before, awaited] = [written, 1.0, 1.0]
        entry = self._anywhere.get(awaited)
        if entry is not None:
            _count(entry, awaited, written)
        elif awaited != written:
            self._anywhere[awaited] = [written, 1.0, 1.0]


def _count(entry: list[float], awaited: int, written: int) -> None:
    is_same = entry[0] == written
    entry[1], entry[2] = DECAY * entry[1] + is_same, DECAY * entry[2] + 1
    if not is_same and written != awaited:
        entry[0], entry[1] = written, 1.0

"""Tokens that were written in place of those of the text that is followed."""

from __future__ import annotations

DECAY = 0.8
CLASSES = (0.2, 0.45, 0.7)
"""Shares up to which a substitution belongs to a class; the last one has no end."""


class Substitutions:
    """By the token before and the token that was awaited; else by the latter alone."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, int], tuple[int, float, float]] = {}  # token, how often it came, and how often not

    def find(self, before: int, awaited: int) -> tuple[int, int] | None:
        """The token that was written last, and the class of how often it is: 0 to 3."""
        entry = self._found.get((before, awaited)) or self._found.get((-1, awaited))
        if entry is None:
            return None
        token_id, came, seen = entry
        share = (came + 0.5) / (seen + 1)
        return token_id, sum(share > limit for limit in CLASSES)

    def add(self, before: int, awaited: int, written: int) -> None:
        """`written` came after `before` where `awaited` should have come."""
        for key in ((before, awaited), (-1, awaited)):
            entry = self._found.get(key)
            if entry is not None:
                token_id, came, seen = entry
                came, seen = DECAY * came + (token_id == written), DECAY * seen + 1
                if awaited != written != token_id:
                    token_id, came = written, 1.0
                self._found[key] = token_id, came, seen
            elif awaited != written:
                self._found[key] = written, 1.0, 1.0

"""The place in an earlier text at which a copy of it goes on."""

from __future__ import annotations

from collections.abc import Sequence

COMMITTED = 3
"""Tokens in agreement behind which the anchor moves."""
WINDOW = 64
"""Tokens after the anchor among which the copy is found again."""
RETURNED = 2
"""Agreement of a copy that goes on with the token that was awaited: one token was replaced, or some were inserted."""
LONG, SHORT, LOST = 4, 2, 8
"""Tokens of a match elsewhere that move the anchor there: always, and after so many tokens without agreement."""


class CopyPlace:
    """Compares new tokens with an earlier text.

    next: position of the token that should follow, -1 = none. run: tokens in agreement before it; 0 = the last one
    differs. num_agreed: tokens in agreement since the text is followed from this place.

    A token that differs does not lose the place. The anchor stays behind the last tokens that agreed, and the copy goes
    on at the first place after it where the newest token occurs; if that was wrong, the anchor is where the next search
    begins.
    """

    __slots__ = ("_anchor", "_num_lost", "next", "num_agreed", "run")

    def __init__(self) -> None:
        self.next = self._anchor = -1
        self.run = self.num_agreed = self._num_lost = 0

    def copy(self) -> CopyPlace:
        """Another one at the same place."""
        found = CopyPlace()
        found.next, found.run, found.num_agreed = self.next, self.run, self.num_agreed
        found._anchor, found._num_lost = self._anchor, self._num_lost
        return found

    def step(self, text: Sequence[int], token_id: int, end: int) -> None:
        """A token was written. end: of what is followed."""
        if self._anchor < 0:
            return
        self._num_lost += 1
        if self.next < end and text[self.next] == token_id:
            self.next, self.run, self.num_agreed = self.next + 1, self.run + 1, self.num_agreed + 1
            if self.run >= COMMITTED:
                self._anchor, self._num_lost = self.next, 0
            return
        anchor = self._anchor
        try:
            found = text.index(token_id, anchor, min(end, anchor + WINDOW))
        except ValueError:
            self.next, self.run = anchor, 0
            return
        self.next, self.run = found + 1, RETURNED if found == anchor else 1
        self.num_agreed += 1

    def meet(self, length: int, end: int) -> None:
        """The newest `length` tokens are those before `end` too: follow that place if it agrees better."""
        if self._anchor >= 0 and (length <= self.run or (length < LONG and (length < SHORT or self._num_lost < LOST))):
            return
        if length:
            self.next = self._anchor = end
            self.run = self.num_agreed = length
            self._num_lost = 0

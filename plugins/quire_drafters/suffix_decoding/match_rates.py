"""How often the next token is right, by the number of tokens before it that match."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

LONGEST = (1, 2, 3, 7, 15)
"""Of each class of matches but the last one, which has no end."""
FIRST_GUESSES = (0.55, 0.6, 0.65, 0.75, 0.85, 0.93)
"""For each class, as if so many tokens had been seen: measured on edited code and extracted JSON."""
PRIOR = 8.0
DECAY = 0.995


class MatchRates:
    """Shares of right drafts in one sequence. Older drafts count less: DECAY for each that comes after."""

    def __init__(self) -> None:
        self._right = [PRIOR * guess for guess in FIRST_GUESSES]
        self._seen = [PRIOR] * len(FIRST_GUESSES)

    def observe(self, match_length: int, drafts: Sequence[int], written: Sequence[int]) -> None:
        """drafts: those after a match of so many tokens. written: the tokens that the sequence has in their places."""
        for i, (draft, token_id) in enumerate(zip(drafts, written, strict=False)):
            group = bisect_left(LONGEST, match_length + i)
            self._seen[group] = DECAY * self._seen[group] + 1
            self._right[group] = DECAY * self._right[group] + (draft == token_id)
            if draft != token_id:
                break

    def likely_length(self, match_length: int, most: int, min_probability: float) -> int:
        """How many tokens, at most `most`, are all right with at least this probability."""
        probability = 1.0
        for i in range(most):
            group = bisect_left(LONGEST, match_length + i)
            probability *= self._right[group] / self._seen[group]
            if probability < min_probability:
                return i
        return most

"""Follows an output through the prediction that its client sent ("predicted outputs" of the OpenAI API)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

MAX_NGRAM = 16
"""Tokens that are compared to find the place where the prediction goes on."""
MAX_PLACES = 64
"""Places that are compared for one token: those nearest to where the output left the prediction."""


class PredictedOutput:
    """The place of one output in its prediction, token by token.

    An output begins at the start of the prediction. Where it leaves it, the place is looked up again with every token:
    the one before which most of the newest tokens agree, then the nearest. One token in agreement is enough where a
    single token was inserted or replaced, elsewhere two are needed.
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = prediction
        self._place: int | None = 0
        self._left_at = 0  # the place that was last known
        self._recent: list[int] = []  # the newest tokens, at most `MAX_NGRAM` of them
        self._num_since = 0  # tokens since the output left the prediction
        self._found = bytearray(len(prediction))
        self._places: dict[int, list[int]] | None = None

    @property
    def num_found(self) -> int:
        """Tokens of the prediction that are in the output."""
        return self._found.count(1)

    def advance(self, token_ids: Iterable[int]) -> None:
        """Follow the next tokens of the output."""
        for token_id in token_ids:
            self._advance(token_id)

    def following(self, count: int) -> Sequence[int]:
        """At most `count` tokens that the prediction has after the output; none while its place is not known."""
        return () if self._place is None else self._prediction[self._place : self._place + count]

    def _advance(self, token_id: int) -> None:
        place = self._place
        self._recent.append(token_id)
        del self._recent[:-MAX_NGRAM]
        if place is not None and place < len(self._prediction) and self._prediction[place] == token_id:
            self._found[place] = 1
            self._place = place + 1
            return
        if place is not None:
            self._left_at, self._num_since = place, 0
        self._num_since += 1
        self._place = self._look_up(token_id)
        if self._place is not None:
            agreeing = min(self._agreeing(self._place), self._num_since)
            self._found[self._place - agreeing : self._place] = b"\1" * agreeing

    def _look_up(self, token_id: int) -> int | None:
        best, best_rank = None, (1, 0)
        for place in self._near(token_id):
            agreeing = self._agreeing(place)
            if agreeing > 1 or 0 < place - self._left_at <= 2:
                rank = (agreeing, -abs(place - self._left_at))
                if best is None or rank > best_rank:
                    best, best_rank = place, rank
        return best

    def _near(self, token_id: int) -> Sequence[int]:
        """Places after this token, the nearest `MAX_PLACES`."""
        if self._places is None:
            self._places = {}
            for i, each in enumerate(self._prediction):
                self._places.setdefault(each, []).append(i + 1)
        found = self._places.get(token_id, ())
        begin = max(0, bisect_left(found, self._left_at) - MAX_PLACES // 2)
        return found[begin : begin + MAX_PLACES]

    def _agreeing(self, place: int) -> int:
        """How many of the newest tokens are those before a place."""
        count = 0
        for token_id in reversed(self._recent):
            if count == place or self._prediction[place - 1 - count] != token_id:
                break
            count += 1
        return count

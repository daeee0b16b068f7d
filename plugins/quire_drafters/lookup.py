"""Looks up the newest tokens of a sequence among its earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.plugin import Draft, DraftQuery


class TokenArray:
    """The tokens of a sequence as an array, which grows with it."""

    def __init__(self) -> None:
        self._buffer = np.empty(0, np.int64)
        self._size = 0

    def update(self, token_ids: Sequence[int]) -> NDArray[np.int64]:
        """int64 [len(token_ids)]; `token_ids` begins with the tokens of the last call."""
        size = len(token_ids)
        if size > len(self._buffer):
            self._buffer = np.concatenate([self._buffer[: self._size], np.empty(max(size, 256), np.int64)])
        self._buffer[self._size : size] = token_ids[self._size :]
        self._size = size
        return self._buffer[:size]


class NgramDrafter:
    """min_length, max_length: of the n-grams looked up. The longest that occurs decides, then the latest."""

    def __init__(self, min_length: int, max_length: int) -> None:
        self._min_length, self._max_length = min_length, max_length
        self._arrays: dict[int, TokenArray] = {}

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        return [self._draft(query) for query in queries]

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            self._arrays.pop(seq_id, None)

    def _draft(self, query: DraftQuery) -> Draft:
        tokens = self._arrays.setdefault(query.seq_id, TokenArray()).update(query.token_ids)
        end = last_occurrence(tokens, self._min_length, self._max_length)
        return Draft() if end is None else Draft(_followers(query.token_ids, end, query.max_drafts))


def last_occurrence(tokens: NDArray[np.int64], min_length: int, max_length: int) -> int | None:
    """Where an earlier occurrence of the last tokens ends: of the most of them, up to `max_length`; the latest such."""
    ends = np.flatnonzero(tokens[:-1] == tokens[-1]) + 1
    found = int(ends[-1]) if min_length == 1 and len(ends) else None
    for length in range(2, max_length + 1):
        ends = ends[ends >= length]
        ends = ends[tokens[ends - length] == tokens[-length]] if len(ends) else ends
        if not len(ends):
            break
        if length >= min_length:
            found = int(ends[-1])
    return found


def _followers(tokens: Sequence[int], begin: int, count: int) -> list[int]:
    """`count` tokens from `begin` on; where the text ends it is continued as it was from `begin`: a period."""
    found = list(tokens[begin : begin + count])
    while found and len(found) < count:
        found += found[: count - len(found)]
    return found

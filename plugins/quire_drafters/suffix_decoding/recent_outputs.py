"""Recent outputs of all scopes, searched by their n-grams."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from quire_drafters.lookup import Tokens, common_lengths

NGRAM = 3
"""Tokens that have to match before an output is looked at."""
MAX_ENDS = 64
MAX_TOKENS = 1 << 20
"""Tokens kept: 20 MiB, and 8 MiB for the index, of which only what is written is taken from the system."""
MAX_PENDING = 1 << 18
NONE = -1
FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
MASK_64 = (1 << 64) - 1


class RecentOutputs:
    """A ring of tokens with hash chains, as compressors have: Deutsch, "DEFLATE", RFC 1951, 1996.

    Position p, counted since the start, is at p modulo `max_tokens`, a power of 2. `_previous` has for each position
    that before it whose last NGRAM tokens and scope have the same hash, `_heads` the latest position of each hash.
    NONE follows each output. The oldest tokens leave when the ring is full, the oldest output when there are more than
    `max_outputs`.
    """

    def __init__(self, max_outputs: int, max_tokens: int = MAX_TOKENS) -> None:
        self._max_outputs, self._max_tokens = max_outputs, max_tokens
        self._tokens = np.zeros(max_tokens, np.int32)
        self._scopes = np.zeros(max_tokens, np.uint64)
        self._previous = np.zeros(max_tokens, np.int64)
        self._heads = np.full(max_tokens, NONE, np.int64)
        self._oldest, self._written = 0, 0
        self._begins: deque[int] = deque()
        self._pending: deque[tuple[Tokens, int]] = deque()
        self.num_pending = 0  # tokens that wait for `insert`
        self._num_inserted = 0  # of the first output that waits

    def add(self, tokens: Tokens, scope: int) -> None:
        """An output, which `insert` will make known. scope: 64 bits; the last quarter of a long output is kept."""
        tokens = tokens[-self._max_tokens // 4 :]
        if self._max_outputs and len(tokens) >= NGRAM:
            self._pending.append((tokens, scope))
            self.num_pending += len(tokens)
        while self.num_pending > MAX_PENDING and len(self._pending) > 1:
            self.num_pending -= len(self._pending[1][0])
            del self._pending[1]  # the first one may be inserted in part

    def insert(self, most: int) -> None:
        """Make at most so many tokens of added outputs known."""
        while self._pending and most > 0:
            tokens, scope = self._pending[0]
            begin = self._num_inserted
            piece = tokens[begin : begin + most]
            if not begin:
                self._begins.append(self._written)
                while len(self._begins) > self._max_outputs:
                    self._begins.popleft()
                    self._oldest = max(self._oldest, self._begins[0])
            self._write(piece, scope, begin)
            most -= len(piece)
            self.num_pending -= len(piece)
            self._num_inserted += len(piece)
            if self._num_inserted == len(tokens):
                self._pending.popleft()
                self._num_inserted = 0
                self._written += 1  # the NONE after it stays

    def _write(self, piece: Tokens, scope: int, begin: int) -> None:
        """Append a piece of an output, of which `begin` tokens are there already."""
        first, mask = self._written, self._max_tokens - 1
        end = first + len(piece)
        self._oldest = max(self._oldest, end + 1 - self._max_tokens)
        where = np.arange(first, end + 1) & mask
        self._tokens[where[:-1]], self._tokens[where[-1]] = piece, NONE
        self._scopes[where[:-1]] = scope
        positions = np.arange(max(first, first - begin + NGRAM - 1), end)
        self._written = end
        if len(positions):
            parts = [self._tokens[(positions - back) & mask].astype(np.uint64) for back in range(NGRAM)]
            self._chain(positions, self._slots(parts, np.uint64(scope)))

    def _slots(self, parts: list[NDArray[np.uint64]], scope: np.uint64) -> NDArray[np.int64]:
        mixed = np.full(len(parts[0]), scope)
        for part, factor in zip(parts, FACTORS, strict=True):
            mixed = (mixed ^ part) * np.uint64(factor)
            mixed ^= mixed >> np.uint64(29)
        return (mixed & np.uint64(self._max_tokens - 1)).astype(np.int64)

    def _slot(self, tail: list[int], scope: int) -> int:
        """Of one n-gram what `_slots` gives. tail: the newest token first."""
        mixed = scope
        for token_id, factor in zip(tail, FACTORS, strict=True):
            mixed = ((mixed ^ token_id) * factor) & MASK_64
            mixed ^= mixed >> 29
        return mixed & (self._max_tokens - 1)

    def _chain(self, positions: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        order = np.argsort(slots, kind="stable")
        slots, positions = slots[order], positions[order]
        before = self._heads[slots]
        same = slots[1:] == slots[:-1]
        before[1:][same] = positions[:-1][same]
        self._previous[positions & (self._max_tokens - 1)] = before
        self._heads[slots] = positions  # of equal slots the last one, that of the latest position, is kept

    def continuations(self, tail: Tokens, scope: int, count: int) -> tuple[int, Tokens]:
        """The most tokens at the end of `tail` that occur in outputs of the scope, and what follows: [ends, count].

        Of at most MAX_ENDS ends, the latest, in order of time. NONE follows the end of an output. 0 and an empty array
        if fewer than NGRAM tokens occur.
        """
        nothing = 0, np.empty((0, count), np.int32)
        if len(tail) < NGRAM:
            return nothing
        found = self._candidates(tail, scope)
        if not found:
            return nothing
        mask = self._max_tokens - 1
        positions = np.array(found[::-1])
        index = positions[:, None] - np.arange(len(tail))
        equal = (self._tokens[index & mask] == tail[::-1]) & (index >= self._oldest)
        lengths = common_lengths(equal & (self._scopes[positions & mask] == np.uint64(scope))[:, None])
        length = int(lengths.max())
        if length < NGRAM:
            return nothing
        rows = self._tokens[(positions[lengths == length][:, None] + np.arange(1, count + 1)) & mask]
        rows[np.logical_or.accumulate(rows == NONE, axis=1)] = NONE
        return length, rows

    def _candidates(self, tail: Tokens, scope: int) -> list[int]:
        """Positions of the same hash, the latest first."""
        slot = self._slot(tail[: -NGRAM - 1 : -1].tolist(), scope)
        position, previous, mask = int(self._heads[slot]), self._previous.data, self._max_tokens - 1
        found: list[int] = []
        while position >= self._oldest and position >= 0 and len(found) < MAX_ENDS:
            found.append(position)
            position = previous[position & mask]
        return found

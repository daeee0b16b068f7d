"""Log-probabilities with the text of their tokens.

It knows no requests; shapes of the HTTP APIs are the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, overload

from quire.text.tokenizer import Tokenizer
from quire.types import TokenLogprobs


class Logprob(NamedTuple):  # many are made per token, and a tuple is made fastest
    """Log-probability of one token at one position.

    rank: 1 = most likely. decoded_token: its text as it stands inside a text, U+FFFD for broken
    characters; token_bytes: the same, exactly.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
    token_bytes: bytes | None = None


PositionLogprobs: TypeAlias = dict[int, Logprob]
"""Token id → log-probability: the position's own token first, then the most likely ones in order."""


def describe(entry: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """The log-probabilities at one position, with texts."""
    found = {entry.token_id: _logprob(entry.token_id, entry.logprob, entry.rank, tokenizer)}
    for rank, (token_id, logprob) in enumerate(entry.top, 1):
        if token_id not in found:
            found[token_id] = _logprob(token_id, logprob, rank, tokenizer)
    return found


class LateLogprobs(Sequence["PositionLogprobs | None"]):
    """Positions that get their texts when they are read, each time anew: many would take long, and much memory."""

    def __init__(self, entries: Sequence[TokenLogprobs | None], tokenizer: Tokenizer) -> None:
        self._entries, self._tokenizer = entries, tokenizer

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, place: int) -> PositionLogprobs | None: ...
    @overload
    def __getitem__(self, place: slice) -> LateLogprobs: ...
    def __getitem__(self, place: int | slice) -> PositionLogprobs | LateLogprobs | None:
        if isinstance(place, slice):
            return LateLogprobs(self._entries[place], self._tokenizer)
        entry = self._entries[place]
        return None if entry is None else describe(entry, self._tokenizer)


def _logprob(token_id: int, logprob: float, rank: int, tokenizer: Tokenizer) -> Logprob:
    return Logprob(logprob, rank, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id))

"""Log-probabilities with the texts of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias, overload

from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import TokenLogprobs


class Logprob(NamedTuple):  # several are created per token, and tuples are created fastest
    """Log-probability of one token at one position.

    rank: 1 = most likely. decoded_token: its text in the middle of a text, with U+FFFD for incomplete characters.
    token_bytes: the bytes of that text.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
    token_bytes: bytes | None = None


PositionLogprobs: TypeAlias = dict[int, Logprob]
"""Token id → log-probability: first the token at the position, then the most likely ones in order."""


def with_texts(entry: TokenLogprobs, tokenizer: Tokenizer) -> PositionLogprobs:
    """The log-probabilities at one position, with the texts of their tokens."""
    found = {entry.token_id: _logprob(entry.token_id, entry.logprob, entry.rank, tokenizer)}
    for rank, (token_id, logprob) in enumerate(entry.top, 1):
        if token_id not in found:
            found[token_id] = _logprob(token_id, logprob, rank, tokenizer)
    return found


class LazyLogprobs(Sequence["PositionLogprobs | None"]):
    """Log-probabilities that decode the texts of a position on each access, to save time and memory for many."""

    def __init__(self, entries: Sequence[TokenLogprobs | None], tokenizer: Tokenizer) -> None:
        self._entries, self._tokenizer = entries, tokenizer

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> PositionLogprobs | None: ...
    @overload
    def __getitem__(self, index: slice) -> LazyLogprobs: ...
    def __getitem__(self, index: int | slice) -> PositionLogprobs | LazyLogprobs | None:
        if isinstance(index, slice):
            return LazyLogprobs(self._entries[index], self._tokenizer)
        entry = self._entries[index]
        return None if entry is None else with_texts(entry, self._tokenizer)


def _logprob(token_id: int, logprob: float, rank: int, tokenizer: Tokenizer) -> Logprob:
    return Logprob(logprob, rank, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id))

"""Looks up the newest tokens of a sequence among its earlier ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quire.plugin import Draft, DraftQuery
from quire_drafters.alignment.aligned_text import AlignedText

Tokens = NDArray[np.int32]

MAX_NEW_TOKENS = 16_384
"""Tokens that one step copies, so that a long prompt delays no step; its sequence has no drafts until it is copied."""
MAX_ENDS = 64
MIN_CHANCE = 0.02
"""Of being right, down to which drafts are made."""
FILTERED_LENGTHS = (2, 3, 4)
FEW_ENDS = 6
"""Fewer are compared one by one, which takes less time than calls for all of them."""


class TokenArray:
    """The tokens of a sequence as an array, which grows with it."""

    def __init__(self) -> None:
        self._buffer: Tokens = np.empty(0, np.int32)
        self.size = 0

    def update(self, token_ids: Sequence[int], most: int = MAX_NEW_TOKENS) -> Tokens:
        """int32, the first tokens of `token_ids`, all of them unless more than `most` are new.

        `token_ids` begins with the tokens of the last call.
        """
        size = min(len(token_ids), self.size + most)
        if size > len(self._buffer):
            more = np.empty(max(size - self.size, self.size, 256), np.int32)
            self._buffer = np.concatenate([self._buffer[: self.size], more])
        self._buffer[self.size : size] = token_ids[self.size : size]
        self.size = size
        return self._buffer[:size]


class NgramDrafter:
    """min_length, max_length: of the n-grams looked up. The longest that occurs decides.

    Of its occurrences, that after the most tokens that are the newest ones too, then the latest. What follows it is one
    of the guesses of `AlignedText`.
    """

    def __init__(self, min_length: int, max_length: int) -> None:
        self._min_length, self._depth = min_length, max(max_length, 16)
        self._texts: dict[int, tuple[TokenArray, AlignedText]] = {}

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        left, drafts = MAX_NEW_TOKENS, []
        for query in queries:
            known = self._texts.get(query.seq_id)
            if known is None:
                known = self._texts[query.seq_id] = TokenArray(), AlignedText(query.prompt_len)
            array, before = known[0], known[0].size
            tokens = array.update(query.token_ids, left)
            left -= len(tokens) - before
            drafts.append(self._draft(known[1], tokens, query) if len(tokens) == len(query.token_ids) else Draft())
        return drafts

    def end(self, seq_ids: Sequence[int]) -> None:
        for seq_id in seq_ids:
            self._texts.pop(seq_id, None)

    def _draft(self, text: AlignedText, tokens: Tokens, query: DraftQuery) -> Draft:
        text.observe(query.token_ids)
        length, ends = find_and_meet(text, tokens, query.prompt_len, self._depth, self._min_length)
        chain = continuations(tokens, ends[-1:], query.max_drafts)[0].tolist() if length else []
        token_ids, chances = text.draft(chain, length, query.max_drafts, MIN_CHANCE)
        return Draft(token_ids, chances=chances)


def find_and_meet(
    text: AlignedText, tokens: Tokens, prompt_len: int, max_length: int, min_length: int = 1
) -> tuple[int, NDArray[np.int64]]:
    """The longest matches of the newest tokens in the prompt and in the output, which `text` meets; returns the longer
    ones, those in the output if both have the same length. Nothing is looked up where `text` agrees with one of them
    for long."""
    run, end = text.longest_run
    if run >= max_length and end < len(tokens):
        return max_length, np.array([end])
    found = []
    for begin, end in ((0, prompt_len), (prompt_len, len(tokens))):
        length, ends = longest_matches(tokens[: max(end - 1, 0)], tokens, max_length, begin=begin)
        found.append((length, ends) if length >= min_length else (0, ends[:0]))
    in_prompt, in_output = found
    text.meet(*((length, int(ends[-1]) if length else -1) for length, ends in found))
    return in_output if in_output[0] >= in_prompt[0] else in_prompt


def longest_matches(
    text: Tokens, tail: Tokens, max_length: int, most: int = MAX_ENDS, begin: int = 0
) -> tuple[int, NDArray[np.int64]]:
    """The most of the last tokens of `tail` that occur in a text, up to `max_length`, and where these occurrences end.

    Returns 0 and no ends if not even the last token occurs. Ends ascend; there are at most `most`, the latest. If the
    last token occurs more often, only occurrences of the last 2, 3 or 4 tokens are looked at, as long as there are any,
    and of them the latest. begin: of the ends.
    """
    first = max(begin, 1)
    (ends,) = (text[first - 1 :] == tail[-1]).nonzero()
    if not len(ends):
        return 0, ends
    ends += first
    max_length = min(max_length, len(tail), len(text))
    if len(ends) <= min(FEW_ENDS, most):
        return _longest_of_few(text, tail[: -max_length - 1 : -1].tolist(), ends)
    for length in FILTERED_LENGTHS:
        if len(ends) <= most or length > max_length:
            break
        longer = ends[ends >= length]
        longer = longer[text[longer - length] == tail[-length]]
        if not len(longer):
            break
        ends = longer
    ends = ends[-most:]
    index = ends[:, None] - np.arange(1, max_length + 1)
    lengths = common_lengths((text[index] == tail[: -max_length - 1 : -1]) & (index >= 0))
    longest = lengths.max()
    return int(longest), ends[lengths == longest]


def _longest_of_few(text: Tokens, newest: list[int], ends: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """`longest_matches` for ends of matches. newest: the newest token first."""
    longest, found = 0, list[int]()
    for end in ends.tolist():
        length = 0
        for earlier, token_id in zip(text[max(0, end - len(newest)) : end][::-1].tolist(), newest, strict=False):
            if earlier != token_id:
                break
            length += 1
        if length > longest:
            longest, found = length, [end]
        elif length == longest:
            found.append(end)
    return longest, np.array(found)


def common_lengths(equal: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many of the first columns are true in each row."""
    return np.logical_and.accumulate(equal, axis=1).sum(axis=1)


def continuations(tokens: Tokens, ends: NDArray[np.int64], count: int) -> Tokens:
    """[len(ends), count]: the tokens from each end on; where the text stops it repeats what was from that end on."""
    return tokens[ends[:, None] + np.arange(count) % (len(tokens) - ends)[:, None]]

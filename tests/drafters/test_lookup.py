"""The newest tokens are found where they occur earlier, as comparing every position finds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from quire.params.sampling import SamplingParams
from quire.plugin import DraftQuery
from quire_drafters.lookup import MAX_NEW_TOKENS, NgramDrafter, TokenArray, continuations, longest_matches

TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


def match_length(text: list[int], end: int, most: int) -> int:
    length = 0
    while length < min(end, most) and text[end - 1 - length] == text[-1 - length]:
        length += 1
    return length


@given(TEXTS, st.integers(1, 12))
def test_longest_matches_are_those_of_every_position(text: list[int], most: int) -> None:
    lengths = {end: match_length(text, end, most) for end in range(1, len(text))}
    longest, array = max(lengths.values(), default=0), np.array(text, np.int32)
    length, ends = longest_matches(array[:-1], array, most)
    assert length == longest
    assert ends.tolist() == [end for end, each in lengths.items() if each == longest > 0]


@given(TEXTS, st.integers(1, 12), st.integers(1, 3))
def test_of_many_occurrences_the_latest_are_extended(text: list[int], max_length: int, most: int) -> None:
    array = np.array(text, np.int32)
    length, ends = longest_matches(array[:-1], array, max_length, most)
    longest = max((match_length(text, end, max_length) for end in range(1, len(text))), default=0)
    assert min(longest, 4) <= length <= longest
    assert len(ends) <= most
    assert [match_length(text, end, max_length) for end in ends] == [length] * len(ends)


@given(TEXTS, st.data())
def test_text_continues_with_its_period(text: list[int], data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(text) - 1))
    repeated = text + text[end:] * 20
    found = continuations(np.array(text, np.int32), np.array([end]), 20)
    assert found.tolist() == [repeated[end : end + 20]]


@given(st.lists(st.lists(st.integers(0, 99), max_size=400), max_size=5), st.integers(1, 500))
def test_an_array_grows_with_its_tokens(pieces: list[list[int]], most: int) -> None:
    array, tokens = TokenArray(), []
    for piece in pieces:
        tokens += piece
        while array.size < len(tokens):
            before = array.size
            assert array.update(tokens, most).tolist() == tokens[: before + most]


def query(token_ids: list[int], max_drafts: int = 4, **fields: Any) -> DraftQuery:
    return DraftQuery(fields.pop("seq_id", 1), token_ids, 1, max_drafts, SamplingParams(), 0, **fields)


@pytest.mark.parametrize(
    ("text", "draft"),
    [
        ([1, 2, 3, 9, 1, 2], [3, 9, 1, 2]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),  # the later of two
        ([7, 1, 2, 3, 1, 2, 4, 7, 1, 2], [3, 1, 2, 4]),  # that with more of the same before it
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 2], []),
        ([1], []),
    ],
)
def test_drafts_follow_the_occurrence_of_most_tokens(text: list[int], draft: list[int]) -> None:
    assert list(NgramDrafter(2, 3).propose([query(text)])[0].token_ids) == draft


def test_a_long_prompt_is_copied_in_several_steps() -> None:
    drafter, long, short = NgramDrafter(1, 3), [1, 2] * MAX_NEW_TOKENS, [3, 3]
    queries = [query(short, seq_id=1), query(long, seq_id=2)]
    drafts = [[list(draft.token_ids) for draft in drafter.propose(queries)] for _ in range(3)]
    assert drafts == [[[3] * 4, []], [[3] * 4, []], [[3] * 4, [1, 2, 1, 2]]]
    drafter.end([1, 2, 3])
    assert [len(draft.token_ids) for draft in drafter.propose(queries)] == [4, 0]

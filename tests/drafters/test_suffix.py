"""Suffix decoding: the most frequent continuation, in the text itself and in recent outputs of the same scope."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from quire.errors import ConfigError
from quire.params.sampling import SamplingParams
from quire.plugin import DrafterContext, DraftQuery
from quire_drafters import suffix
from quire_drafters.suffix_decoding.paths import likeliest_path
from quire_drafters.suffix_decoding.recent_outputs import NGRAM, RecentOutputs
from quire_drafters.suffix_decoding.suffix_drafter import INSERTED_PER_STEP, SuffixDrafter, SuffixSettings

ROWS = st.integers(1, 6).flatmap(
    lambda width: st.lists(st.lists(st.integers(0, 2), min_size=width, max_size=width), min_size=1, max_size=12)
)


def array(tokens: list[int]) -> Any:
    return np.array(tokens, np.int32)


def slow_path(rows: list[list[int]], min_probability: float) -> tuple[list[int], float]:
    """Token by token, as in a tree of counts."""
    path: list[int] = []
    score = 0.0
    alive = rows
    for column in range(len(rows[0])):
        following = [row[column] for row in alive if row[column] >= 0]
        if not following:
            break
        counts = Counter(following)
        best = max(counts, key=lambda token: (counts[token], max(i for i, t in enumerate(following) if t == token)))
        if counts[best] < min_probability * len(rows):
            break
        alive = [row for row in alive if row[column] == best]
        path.append(best)
        score += len(alive) / len(rows)
    return path, score


@given(ROWS, st.lists(st.integers(0, 6), min_size=12, max_size=12), st.floats(0, 1))
def test_the_likeliest_path_is_that_of_a_tree_of_counts(
    rows: list[list[int]], lengths: list[int], min_probability: float
) -> None:
    cut = [row[:length] + [-1] * (len(row) - length) for row, length in zip(rows, lengths, strict=False)]
    found = likeliest_path(array(cut), min_probability)
    path, score = slow_path(cut, min_probability)
    assert found.token_ids == path
    assert math.isclose(found.score, score, abs_tol=1e-9)


def slow_continuations(
    outputs: list[tuple[list[int], int]], tail: list[int], scope: int, count: int
) -> tuple[int, list[list[int]]]:
    found = []
    for output, owner in outputs:
        for end in range(1, len(output) + 1):
            length = 0
            while length < min(end, len(tail)) and output[end - 1 - length] == tail[-1 - length]:
                length += 1
            if owner == scope:
                found.append((length, (output[end:] + [-1] * count)[:count]))
    longest = max((length for length, _ in found), default=0)
    return (longest, [row for length, row in found if length == longest]) if longest >= NGRAM else (0, [])


OUTPUTS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), min_size=NGRAM, max_size=20), st.sampled_from([3, 2**64 - 1])), max_size=8
)


@given(OUTPUTS, st.lists(st.integers(0, 2), max_size=8), st.integers(1, 6), st.integers(1, 9))
def test_recent_outputs_are_found_as_by_comparing_every_position(
    outputs: list[tuple[list[int], int]], tail: list[int], count: int, piece: int
) -> None:
    known = RecentOutputs(max_outputs=100, max_tokens=1024)
    for output, scope in outputs:
        known.add(array(output), scope)
        for _ in range(len(output)):
            known.insert(piece)
    for scope in (3, 2**64 - 1, 5):
        length, rows = known.continuations(array(tail), scope, count)
        expected, slow = slow_continuations(outputs, tail, scope, count)
        assert length == expected
        assert rows.tolist() == slow[-64:] or len(slow) > 32  # other scopes take places among the ends looked at


@given(OUTPUTS, st.integers(1, 5), st.integers(1, 9))
def test_the_oldest_leave_and_memory_stays(outputs: list[tuple[list[int], int]], max_outputs: int, piece: int) -> None:
    known = RecentOutputs(max_outputs, max_tokens=128)
    for output, scope in outputs:
        known.add(array(output), scope)
    while known.num_pending:
        known.insert(piece)
    kept = [(output, scope) for output, scope in outputs][-max_outputs:]
    for output, scope in outputs:
        length, rows = known.continuations(array(output[:NGRAM]), scope, 20)
        expected, slow = slow_continuations(kept, output[:NGRAM], scope, 20)
        if sum(len(each) + 1 for each, _ in kept) < 128:
            assert (length, rows.tolist()) == (expected, slow)
        else:
            assert all(row in slow for row in rows.tolist())


def test_an_output_is_found_while_it_is_inserted() -> None:
    known = RecentOutputs(4, 64)
    for _ in range(5):  # the ring goes round
        known.add(array(list(range(16))), 1)
        known.insert(9)
        assert known.continuations(array([0, 1, 2]), 1, 8)[1].tolist()[-1] == [3, 4, 5, 6, 7, 8, -1, -1]
        known.insert(100)
        assert known.continuations(array([0, 1, 2]), 1, 8)[1].tolist()[-1] == [3, 4, 5, 6, 7, 8, 9, 10]


def query(token_ids: list[int], seq_id: int = 1, prompt_len: int = 1, most: int = 8, scope: bytes = b"") -> DraftQuery:
    return DraftQuery(seq_id, token_ids, prompt_len, most, SamplingParams(), 0, scope=scope)


def drafter(**settings: Any) -> SuffixDrafter:
    return SuffixDrafter(SuffixSettings(**{"max_spec_factor": 1.0, **settings}), RecentOutputs(100, 1024))


def drafts(found: SuffixDrafter, *queries: DraftQuery) -> list[list[int]]:
    return [list(draft.token_ids) for draft in found.propose(queries)]


def test_drafts_are_as_long_as_the_match() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert drafts(drafter(), query([*text, 99, 1, 2, 3])) == [[4, 5, 6]]
    assert drafts(drafter(max_spec_factor=2.0), query([*text, 99, 1, 2, 3])) == [[4, 5, 6, 7, 8, 9]]
    assert drafts(drafter(max_spec_factor=0.5), query([*text, 99, 1, 2, 3])) == [[4]]
    assert drafts(drafter(max_tree_depth=2), query([*text, 99, 1, 2, 3])) == [[4, 5]]
    assert drafts(drafter(), query([*text, 99, 1, 2, 3], most=2)) == [[4, 5]]


def test_the_more_frequent_continuation_wins_unless_it_is_unlikely() -> None:
    text = [1, 2, 5, 0, 1, 2, 5, 9, 1, 2, 7, 8, 1, 2]
    assert drafts(drafter(), query(text)) == [[5, 9]]  # 5 follows twice, 7 once; then 0 and 9 once each, 9 later
    assert drafts(drafter(min_token_prob=0.34), query(text)) == [[5]]
    assert drafts(drafter(min_token_prob=0.7), query(text)) == [[]]


def test_drafts_become_shorter_where_they_are_wrong_and_longer_where_they_are_right() -> None:
    for is_right in (True, False):
        found, text = drafter(max_spec_factor=8.0), [1, *range(10, 30), 1]
        (first,) = drafts(found, query(text))
        for i in range(99):
            text += [*range(10, 30)] if is_right else [1000 + i]
            text += [1]
            (last,) = drafts(found, query(text))
        assert (len(last) > len(first)) == is_right
        assert is_right or not last


def test_ended_outputs_are_drafted_for_others_of_the_scope() -> None:
    found, output = drafter(), [4, 5, 6, 7, 8]
    assert drafts(found, query([1, 2, 3, *output], prompt_len=3)) == [[]]
    found.end([1])
    asked = [query([9, 90 + seq_id, 4, 5, 6], seq_id, 2, scope=scope) for seq_id, scope in ((2, b""), (3, b"other"))]
    assert drafts(found, *asked) == [[7, 8], []]
    assert drafts(found, query([0, 1, 2, 3], 4, 4)) == [[4, 5, 6]]  # the first tokens after the same end of a prompt


def test_tokens_sampled_after_the_last_draft_are_kept_too() -> None:
    found, tokens = drafter(), [1, 2, 3]
    drafts(found, query(tokens))
    tokens += [4, 5, 6]
    found.end([1, 77])
    assert drafts(found, query([0, 2, 3, 4], 2)) == [[5, 6]]


def test_outputs_are_kept_while_few_enter_in_a_step() -> None:
    found = SuffixDrafter(SuffixSettings(max_spec_factor=1.0), RecentOutputs(100, 1 << 16))
    for seq_id in range(3):
        drafts(found, query([seq_id * 10_000 + i for i in range(INSERTED_PER_STEP)], seq_id))
    found.end([0, 1, 2])
    for seq_id in range(3):
        first = seq_id * 10_000
        assert drafts(found, query([first, first + 1, first + 2], 9))[0] == [first + 3, first + 4, first + 5]
        found.end([9])


def test_without_cached_requests_a_text_knows_itself_only() -> None:
    found = SuffixDrafter(SuffixSettings(max_spec_factor=1.0), RecentOutputs(0, 1024))
    drafts(found, query([1, 2, 3, 4, 5]))
    found.end([1])
    assert drafts(found, query([1, 2, 3]), query([6, 7, 6], 2)) == [[], [7]]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tree_depth", 1),
        ("max_tree_depth", 10_000),
        ("max_tree_depth", 8.0),
        ("max_cached_requests", -1),
        ("max_cached_requests", True),
        ("max_spec_factor", 0),
        ("max_spec_factor", "2"),
        ("min_token_prob", float("nan")),
        ("min_token_prob", 1.5),
    ],
)
def test_wrong_settings_are_refused(name: str, value: Any) -> None:
    (record,) = suffix.quire_drafters()
    key = f"suffix_decoding_{name}"
    with pytest.raises(ConfigError, match=key):
        record.build(DrafterContext(settings={key: value}))

"""Segments of a step: which tokens use which adapters, by position in the stack and by slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from quire_kernels.low_rank import Segments, SegmentsCache

Uses = Sequence[tuple[tuple[int, float], ...]]


def as_lists(segments: Segments) -> tuple[list[Any], ...]:
    host = segments.host
    for mine, theirs in zip(
        (segments.tokens, segments.weights, segments.starts, segments.slots),
        (host.tokens, host.weights, host.starts, host.slots),
        strict=True,
    ):
        assert mine.tolist() == theirs.tolist()
    return host.tokens.tolist(), host.weights.tolist(), host.starts.tolist(), host.slots.tolist(), [*segments.passes]


def test_segments_are_ordered_by_position_in_the_stack_and_then_by_slot() -> None:
    uses: Uses = [((2, 1.0),), (), ((0, 0.5), (2, 2.0)), ((2, 3.0),), ((1, 1.0), (0, 4.0))]
    segments = Segments.from_uses(uses, [2, 3, 1, 2, 1])
    assert as_lists(segments) == (
        [5, 8, 0, 1, 6, 7, 8, 5],
        [0.5, 1.0, 1.0, 1.0, 3.0, 3.0, 4.0, 2.0],
        [0, 1, 2, 6, 7, 8],
        [0, 1, 2, 0, 2],
        [0, 3, 5],
    )
    assert (len(segments), segments.min_tokens) == (5, 9)


@pytest.mark.parametrize("uses", [[], [(), ()]])
def test_segments_without_adapters_are_empty(uses: Uses) -> None:
    segments = Segments.from_uses(uses, [1] * len(uses))
    assert as_lists(segments) == ([], [], [0], [], [0])
    assert (len(segments), segments.min_tokens) == (0, 0)


def test_segments_of_some_rows() -> None:
    uses: Uses = [((2, 1.0),), (), ((0, 0.5), (2, 2.0)), ((2, 3.0),)]
    segments = Segments.from_uses(uses, [2, 3, 1, 2])
    assert as_lists(segments.select(torch.tensor([7, 1, 3, 5, 7]))) == (
        [3, 1, 0, 4, 3],
        [0.5, 1.0, 3.0, 3.0, 2.0],
        [0, 1, 4, 5],
        [0, 2, 2],
        [0, 2, 3],
    )
    assert as_lists(segments.select(torch.tensor([2, 3]))) == ([], [], [0], [], [0])
    assert as_lists(segments.select(torch.tensor([], dtype=torch.int64))) == ([], [], [0], [], [0])


def test_segments_of_a_step_like_the_one_before_are_the_same() -> None:
    last = SegmentsCache()
    uses, lens = [((1, 1.0),), (), ((0, 0.5),)], [1, 1, 1]
    first = last.get(uses, lens)
    assert last.get([*uses], [*lens]) is first
    for other, counts in (
        (uses, [1, 2, 1]),
        ([((1, 2.0),), (), ((0, 0.5),)], lens),
        (uses[:2], lens[:2]),
        (uses, lens),
    ):
        made, wanted = last.get(other, counts), Segments.from_uses(other, counts)
        for name in ("tokens", "weights", "starts", "slots"):
            assert torch.equal(getattr(made, name), getattr(wanted, name)), name
        assert made.passes == wanted.passes

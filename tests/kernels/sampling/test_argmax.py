"""The op `argmax`: every implementation, C++ for each instruction set that this machine has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sampling_problems import SIZES, normal, settings

# --- argmax ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", SIZES)
def test_the_largest_is_found_wherever_it_is_and_the_first_of_equals_is_taken(ops: Any, vocab: int) -> None:
    places = sorted({0, 1, vocab // 3, vocab // 2, vocab - 2, vocab - 1} & set(range(vocab)))
    logits = normal(len(places), vocab)
    for row, place in enumerate(places):
        logits[row, [place, vocab - 1]] = 100.0
    assert ops.argmax(logits).tolist() == places
    greedy = settings(len(places), 0.9, temperature=0.0, top_k=5, top_p=0.9, min_p=0.1)
    assert ops.sample(logits, *greedy).tolist() == places


@pytest.mark.parametrize("vocab", SIZES)
def test_nothing_is_chosen_where_nothing_is_finite_or_something_is_no_number(ops: Any, vocab: int) -> None:
    logits = normal(5, vocab)
    logits[0] = -torch.inf
    logits[1, vocab - 1] = torch.nan
    logits[2, vocab // 2] = torch.nan
    logits[3, vocab // 3] = torch.inf
    found = ops.argmax(logits).tolist()
    assert found == [-1, -1, -1, -1, int(logits[4].argmax())]
    for temperature in (0.0, 0.5, 1.0):
        drawn = ops.sample(logits, *settings(5, temperature=temperature, top_p=[1, 0.9, 1, 0.9, 0])).tolist()
        assert drawn == found


def test_rows_may_lie_apart(ops: Any) -> None:
    wide = normal(4, 3000)
    logits = wide[:, 100:2100]
    assert torch.equal(ops.argmax(logits), logits.contiguous().max(-1).indices)
    uniform = [0.1, 0.4, 0.7, 0.99]
    assert torch.equal(
        ops.sample(logits, *settings(4, uniform)), ops.sample(logits.contiguous(), *settings(4, uniform))
    )
    tokens = torch.tensor([5, 6, 7, 8])
    for found, expected in zip(
        ops.logprobs(logits, tokens, 3), ops.logprobs(logits.contiguous(), tokens, 3), strict=True
    ):
        assert torch.equal(found, expected)
    assert torch.equal(ops.argmax(wide.T), wide.T.contiguous().max(-1).indices)

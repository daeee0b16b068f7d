"""The op that draws tokens: filters, seeds, and equal results in any batch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from reference_sampling import kept_by_hand
from sampling_problems import PLAIN, SIZES, apart, normal, settings
from torch import Tensor

from quire_kernels.cpu.sampling import CpuSampling
from quire_kernels.pytorch import ops as torch_ops

# --- drawing -----------------------------------------------------------------------------------------

FILTERS = [
    (1.0, 0, 1.0, 0.0),
    (0.5, 0, 1.0, 0.0),
    (2.0, 0, 1.0, 0.0),
    (1.0, 1, 1.0, 0.0),
    (1.0, 7, 1.0, 0.0),
    (1.0, 9999, 1.0, 0.0),
    (1.0, 0, 0.0, 0.0),
    (1.0, 0, 1e-6, 0.0),
    (1.0, 0, 0.7, 0.0),
    (1.0, 0, 0.999, 0.0),
    (1.0, 0, 1.0, 0.1),
    (1.0, 0, 1.0, 1.0),
    (2.0, 12, 0.9, 0.0),
    (2.0, 12, 0.9, 0.2),
    (0.7, 9999, 0.9, 0.001),
    (1.0, 5, 0.0, 0.0),
]
"""temperature, top_k, top_p, min_p"""


@pytest.mark.parametrize(("temperature", "top_k", "top_p", "min_p"), FILTERS)
@pytest.mark.parametrize("vocab", [50, 300, 9000])
def test_exactly_the_kept_tokens_are_drawn_each_in_the_middle_of_its_share(
    ops: Any, vocab: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = apart(vocab)
    kept = dict(sorted(kept_by_hand(logits, temperature, min(top_k, vocab), top_p, min_p).items()))
    share = np.array(list(kept.values()))
    middle = share.cumsum() - share / 2
    found = ops.sample(
        logits.expand(len(kept), -1), *settings(len(kept), middle, temperature, top_k, top_p, min_p)
    ).tolist()
    wide = share > 1e-5  # the others end within the tolerance of a chance
    assert np.array(found)[wide].tolist() == np.array(list(kept))[wide].tolist()
    assert set(found) <= set(kept)


@pytest.mark.parametrize("vocab", SIZES)
def test_chance_reaches_from_the_first_to_the_last_token_that_is_kept(ops: Any, vocab: int) -> None:
    logits = normal(4, vocab)
    kept = [sorted(kept_by_hand(row, 1.0, 0, 0.9, 0.0)) for row in logits]
    assert ops.sample(logits, *settings(4, 0.0, top_p=0.9)).tolist() == [ids[0] for ids in kept]
    assert ops.sample(logits, *settings(4, 1 - 2**-53, top_p=0.9)).tolist() == [ids[-1] for ids in kept]


@cache
def random_draws(spread: float, rows: int, implementation: str) -> tuple[Tensor, tuple[np.ndarray, ...], Tensor]:
    """Logits, all kinds of settings, and what is drawn."""
    random = np.random.default_rng(0)
    logits = normal(4, 3000, spread, seed=1).repeat(rows // 4, 1)
    kinds = random.integers(0, 4, rows)
    arguments = settings(
        rows,
        random.random(rows),
        random.choice([0.3, 1.0, 1.7], rows),
        np.where(kinds == 1, random.choice([1, 2, 23, 24, 25, 40, 100, 1500, 2999, 4000], rows), 0),
        np.where(kinds >= 2, random.random(rows), 1.0),
        np.where(kinds == 3, 0.02, 0.0),
    )
    return logits, arguments, PLAIN[implementation].sample(logits, *arguments)


SPREADS = [0.0, 0.01, 0.5, 3.0, 12.0]


@pytest.mark.parametrize("spread", SPREADS)
def test_random_draws_in_torch_are_those_of_the_reference(spread: float) -> None:
    logits, arguments, expected = random_draws(spread, 400, "reference")
    assert torch_ops.sample(logits, *arguments).tolist() == expected.tolist()


@pytest.mark.parametrize("spread", SPREADS)
def test_random_draws_in_cpp_are_those_in_torch(compiled: CpuSampling, spread: float) -> None:
    logits, arguments, expected = random_draws(spread, 3000, "torch")
    assert (compiled.sample(logits, *arguments) == expected).double().mean().item() > 0.999


def test_equals_at_a_threshold_are_kept_together(ops: Any) -> None:
    logits = torch.full((1, 3000), -9.0)
    logits[0, 10], logits[0, [20, 700, 701, 2999]] = 5.0, 4.0
    uniform = (np.arange(1000) + 0.5) / 1000
    for filters in ({"top_k": 2}, {"top_k": 5}, {"top_p": 0.5}, {"top_k": 3, "top_p": 0.8}, {"min_p": 0.3}):
        drawn = ops.sample(logits.expand(1000, -1), *settings(1000, uniform, **filters)).tolist()
        assert set(drawn) == {10, 20, 700, 701, 2999}, filters
    assert set(ops.sample(logits.expand(1000, -1), *settings(1000, uniform, top_k=2, top_p=0.3)).tolist()) == {10}


@pytest.mark.parametrize("vocab", [2, 129, 20_000])
@pytest.mark.parametrize(
    "filters", [{}, {"top_p": 0.5}, {"top_k": 10}, {"min_p": 0.5}, {"top_k": 10_000, "top_p": 0.1}]
)
def test_a_flat_distribution_stays_flat(ops: Any, vocab: int, filters: dict[str, Any]) -> None:
    uniform = np.array([0.0, 0.1, 0.5, 0.95, 1 - 2**-53])
    drawn = ops.sample(torch.zeros(5, vocab), *settings(5, uniform, **filters))
    assert drawn.tolist() == np.floor(uniform * vocab).astype(int).tolist()


@pytest.mark.parametrize("vocab", [1, 3, 129, 20_000])
def test_a_token_that_alone_is_possible_is_drawn(ops: Any, vocab: int) -> None:
    logits = torch.full((4, vocab), -torch.inf)
    places = [0, vocab // 2, vocab - 1, vocab // 3]
    logits[range(4), places] = torch.tensor([-3e38, 0.0, 3e38, 1e-40])
    drawn = ops.sample(
        logits, *settings(4, [0, 0.3, 0.6, 1 - 2**-53], 1.3, [0, 3, 0, 9], [1, 0.9, 0, 0.5], [0, 0, 0.5, 1])
    )
    assert drawn.tolist() == places


@pytest.mark.parametrize("temperature", [1e-2, 1e-6, 1e-38, 1e-45, 5e-324])
def test_a_very_cold_row_takes_the_largest(ops: Any, temperature: float) -> None:
    logits = apart(9000, step=3.0)[None]
    for filters in ({}, {"top_p": 0.9}, {"top_k": 40}, {"min_p": 0.1}):
        assert ops.sample(logits, *settings(1, 0.9, temperature, **filters)).tolist() == [int(logits.argmax())]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_row_draws_the_same_in_any_batch_with_any_threads(ops: Any, threads: Any, count: int) -> None:
    rows, vocab, random = 24, 50_000, np.random.default_rng(3)
    logits = (normal(rows, vocab) * 8).round() / 8  # with ties
    arguments = settings(
        rows,
        random.random(rows),
        random.choice([0.0, 0.005, 0.7, 1.0], rows),
        random.choice([0, 50, 3000], rows),
        random.choice([1.0, 0.9, 0.3], rows),
        random.choice([0.0, 0.01], rows),
    )
    threads(1)
    expected = torch.cat([ops.sample(logits[r : r + 1], *(each[r : r + 1] for each in arguments)) for r in range(rows)])
    threads(count)
    assert torch.equal(ops.sample(logits, *arguments), expected)
    assert torch.equal(ops.sample(logits[5:8], *(each[5:8] for each in arguments)), expected[5:8])
    for r in range(0, rows, 5):
        assert torch.equal(ops.sample(logits[r : r + 1], *(each[r : r + 1] for each in arguments)), expected[r : r + 1])


def test_the_logits_are_left_as_they_are(ops: Any) -> None:
    logits = normal(3, 5000)
    before = logits.clone()
    ops.argmax(logits)
    ops.sample(logits, *settings(3, temperature=[0.0, 1e-9, 1.0], top_p=0.9, top_k=7))
    ops.logprobs(logits, torch.tensor([1, 2, 3]), 4)
    assert torch.equal(logits, before)


def test_settings_must_be_one_for_each_row(compiled: CpuSampling) -> None:
    with pytest.raises(ValueError, match="3 rows, but settings of shapes"):
        compiled.sample(normal(3, 10), *settings(2))

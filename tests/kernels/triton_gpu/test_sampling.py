"""The Triton op `sample`: filters whose thresholds lie anywhere, in vocabularies of several blocks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from interpreted import DEVICE, TritonOps, needs_triton, triton_ops
from sampling_problems import normal, settings

from quire_kernels import reference

pytestmark = needs_triton


@pytest.fixture(scope="module")
def triton() -> Iterator[TritonOps]:
    yield from triton_ops()


def test_draws_are_those_of_the_reference(triton: TritonOps) -> None:
    random = np.random.default_rng(0)
    vocab, rows = 9000, 12
    logits = normal(rows, vocab, 1.0, seed=1) * torch.tensor([0.01, 3.0, 3.0, 0.01] * 3)[:, None]
    drawn = (
        random.random(rows),
        np.array([0.3, 1.0, 1.7] * 4),
        np.array([0, 1, 40, 100, 5000, 9999, 0, 0, 0, 24, 25, 0]),
        np.array([1, 1, 1, 0.9, 0.5, 1, 0.9, 0.2, 0.0, 1.0, 0.99, 0.999]),
        np.array([0, 0, 0, 0, 0.1, 0.02, 0, 0, 0, 0.3, 0, 0.001]),
    )
    arguments = settings(rows, *drawn)
    expected = reference.sample(logits, *arguments)
    assert triton.sample(logits.to(DEVICE), *arguments).tolist() == expected.tolist()


def test_rows_without_filters_greedy_rows_and_rows_without_a_distribution(triton: TritonOps) -> None:
    wide = normal(7, 4200)
    wide[2, 4100] = torch.nan
    wide[3, 5] = torch.inf
    wide[4] = -torch.inf
    wide[5] = -torch.inf
    wide[5, 4150] = -3e38
    wide[6] = torch.cat((torch.full((4199,), 3e38), torch.tensor([-3e38])))
    logits = wide[:, 3:]
    arguments = settings(7, [0.4, 0.5, 0.1, 0.2, 0.3, 0.9, 1 - 2**-53], [1, 0, 1, 0.5, 0, 1e-40, 1e-30])
    wanted = reference.sample(logits, *arguments)
    with np.errstate(over="ignore"):
        found = triton.sample(logits.to(DEVICE), *arguments).tolist()
        alone = [
            triton.sample(logits[i : i + 1].to(DEVICE), *(each[i : i + 1] for each in arguments)).item()
            for i in (0, 1, 6)
        ]
    assert found == wanted.tolist()
    assert alone == [found[i] for i in (0, 1, 6)]
    assert found[2:6] == [-1, -1, -1, 4147]


def test_equals_at_a_threshold_are_kept_together(triton: TritonOps) -> None:
    logits = torch.full((1, 4200), -9.0)
    logits[0, 10], logits[0, [20, 700, 701, 4199]] = 5.0, 4.0
    uniform = (np.arange(5) + 0.5) / 5
    for filters in ({"top_k": 3, "top_p": 0.8}, {"min_p": 0.3}):
        drawn = triton.sample(logits.expand(5, -1).to(DEVICE), *settings(5, uniform, **filters))
        assert drawn.tolist() == reference.sample(logits.expand(5, -1), *settings(5, uniform, **filters)).tolist()
        assert len(set(drawn.tolist())) > 1, filters

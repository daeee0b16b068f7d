"""The op that reports log-probabilities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sampling_problems import SIZES, normal

from quire_kernels.cpu.sampling import CpuSampling

# --- log-probabilities ---------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", SIZES)
@pytest.mark.parametrize("top", [0, 1, 20, 10**6])
def test_the_token_its_rank_and_the_most_likely_ones_are_reported(ops: Any, vocab: int, top: int) -> None:
    logits = (normal(3, vocab) * 8).round() / 8  # with ties
    tokens = torch.tensor([0, vocab // 2, vocab - 1])
    own, rank, ids, values = ops.logprobs(logits, tokens, top)
    every = torch.log_softmax(logits.double(), -1).float()
    torch.testing.assert_close(own, every[range(3), tokens], atol=1e-5, rtol=1e-6)
    for r in range(3):
        row = logits[r].tolist()
        assert ids[r].tolist() == sorted(range(vocab), key=lambda i, row=row: (-row[i], i))[:top]
        assert rank[r].item() == 1 + int((logits[r] > logits[r, tokens[r]]).sum())
    torch.testing.assert_close(values, every.gather(-1, ids), atol=1e-5, rtol=1e-6)
    assert values.shape == ids.shape == (3, min(top, vocab))


@pytest.mark.parametrize("top", [1, 5, 129, 3000])
def test_of_equals_the_first_are_reported(ops: Any, top: int) -> None:
    logits = torch.zeros(2, 3000)
    logits[1, [2500, 40]] = 1.0
    _, rank, ids, _ = ops.logprobs(logits, torch.tensor([9, 9]), top)
    assert rank.tolist() == [1, 3]
    assert ids[0].tolist() == list(range(top))
    rest = [i for i in range(3000) if i not in (40, 2500)]
    assert ids[1].tolist() == [40, 2500, *rest][:top]


def test_what_is_impossible_has_no_probability(ops: Any) -> None:
    logits = torch.full((1, 500), -torch.inf)
    logits[0, [3, 100]] = torch.tensor([1.0, 1.0])
    own, rank, ids, values = ops.logprobs(logits, torch.tensor([7]), 4)
    assert (own.tolist(), rank.tolist()) == ([-torch.inf], [3])
    assert ids.tolist() == [[3, 100, 0, 1]]
    torch.testing.assert_close(values, torch.tensor([[-np.log(2), -np.log(2), -np.inf, -np.inf]]).float())


@pytest.mark.parametrize("vocab", [5, 500, 50_000])
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_no_distribution_reports_no_numbers_and_the_others_do(ops: Any, vocab: int, wrong: float) -> None:
    logits = normal(3, vocab)
    if wrong == -torch.inf:
        logits[1] = wrong
    else:
        logits[1, vocab - 1] = wrong
    own, _, ids, values = ops.logprobs(logits, torch.tensor([1, 1, 1]), 3)
    assert own.isnan().tolist() == [False, True, False]
    assert values.isnan().all(-1).tolist() == [False, True, False]
    assert ((ids >= 0) & (ids < vocab)).all()


def test_a_row_reports_the_same_bits_in_any_batch_with_any_threads(ops: Any, threads: Any) -> None:
    rows, vocab = 12, 50_000
    logits, tokens = normal(rows, vocab), torch.arange(rows) * 17
    threads(1)
    alone = [ops.logprobs(logits[r : r + 1], tokens[r : r + 1], 7) for r in range(rows)]
    expected = [torch.cat(parts) for parts in zip(*alone, strict=True)]
    for count in (1, 2, 3):
        threads(count)
        for found, want in zip(ops.logprobs(logits, tokens, 7), expected, strict=True):
            assert torch.equal(found, want)
        for found, want in zip(ops.logprobs(logits[4:5], tokens[4:5], 7), expected, strict=True):
            assert torch.equal(found, want[4:5])
        larger = ops.logprobs(logits, tokens, 20)
        assert torch.equal(larger[3][:, :7], expected[3]), "however many others want"


def test_a_token_beyond_the_vocabulary_is_an_error(compiled: CpuSampling) -> None:
    for token in (-1, 10):
        with pytest.raises(IndexError, match="tokens must be from 0 to 9"):
            compiled.logprobs(normal(2, 10), torch.tensor([3, token]), 2)

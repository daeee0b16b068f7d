"""Sampling against straightforward re-computations, row by row."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from reference_sampling import kept_by_hand
from sampler_rig import OPS, VOCAB, chooser, make_sampler, one, random_logits

from quire.engine.sampling.logprobs import ALL, token_logprobs
from quire.engine.sampling.not_finite import NOT_FINITE
from quire.engine.sampling.rng import uniforms
from quire.engine.sampling.sampler import SamplingState
from quire.params.sampling import BeamSearchParams
from quire_kernels import reference, select


def draw_many(logits: torch.Tensor, count: int, **params: Any) -> Counter[int]:
    rows = [chooser(seed=seed, **params) for seed in range(count)]
    samples = make_sampler().sample(logits.expand(count, -1).clone(), rows)
    return Counter(sample.token_id for sample in samples)


# --- greedy ------------------------------------------------------------------------------------------


def test_greedy_takes_the_largest_and_the_first_of_equals() -> None:
    logits = random_logits(3)
    logits[1, [40, 60]] = 99.0
    samples = make_sampler().sample(logits.clone(), [chooser(temperature=0) for _ in range(3)])
    assert [s.token_id for s in samples] == [int(np.argmax(row)) for row in logits.numpy()]
    assert samples[1].token_id == 40


def test_a_drawn_token_is_noted_in_the_output() -> None:
    row = chooser(temperature=0, output=(1, 2))
    sample = one(random_logits(), row)
    assert row.output_ids == [1, 2, sample.token_id]


# --- randomness --------------------------------------------------------------------------------------


def test_uniforms_are_uniform_and_depend_on_seed_and_count_only() -> None:
    seeds = np.arange(20_000, dtype=np.uint64)
    values = uniforms(seeds, np.zeros(20_000, np.int64))
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    counts, _ = np.histogram(values, 50, (0, 1))
    assert ((counts - 400) ** 2 / 400).sum() < 85.4  # chi-square, 49 degrees of freedom, 0.1 %
    again = uniforms(seeds[::-1], np.zeros(20_000, np.int64))[::-1]
    assert (values == again).all()
    along = uniforms(np.zeros(20_000, np.uint64), np.arange(20_000))
    assert abs(np.corrcoef(along[1:], along[:-1])[0, 1]) < 0.03


def test_uniforms_are_these_for_ever() -> None:
    """Seeds promise the same text in every version."""
    values = uniforms(np.array([0, 1, 2**64 - 1], np.uint64), np.array([0, 5, 123]))
    assert values.tolist() == [_uniform_by_hand(0, 0), _uniform_by_hand(1, 5), _uniform_by_hand(2**64 - 1, 123)]


def _uniform_by_hand(seed: int, count: int) -> float:
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    stream = mix((seed + golden) & mask)
    return (mix((stream + (count + 1) * golden) & mask) >> 11) / 2**53


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1.0, 0, 1.0, 0.0),
        (0.5, 0, 1.0, 0.0),
        (2.0, 0, 1.0, 0.0),
        (1.0, 5, 1.0, 0.0),
        (1.0, 0, 0.7, 0.0),
        (1.0, 0, 1.0, 0.1),
        (0.8, 40, 0.9, 0.02),
        (1.0, 1, 1.0, 0.0),
        (1.0, 9999, 0.5, 0.0),
        (1.0, 0, 1e-6, 0.0),
        (1.0, 0, 1.0, 1.0),
    ],
)
def test_tokens_are_drawn_with_the_right_frequencies(
    temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = random_logits(seed=1, spread=2.0)
    expected = kept_by_hand(logits[0], temperature, top_k, top_p, min_p)
    count = 4000
    found = draw_many(logits, count, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert set(found) <= set(expected)
    cells = [(found[i], count * p) for i, p in expected.items() if count * p >= 5]
    rest = (count - sum(f for f, _ in cells), count - sum(e for _, e in cells))
    cells += [rest] if rest[1] >= 5 else []
    chi_square = sum((f - e) ** 2 / e for f, e in cells)
    freedom = len(cells) - 1
    assert chi_square <= freedom + 4 * math.sqrt(2 * freedom) + 1e-9


@pytest.mark.parametrize("top_k", [VOCAB, 2**62])
def test_a_top_k_beyond_the_vocabulary_keeps_everything(top_k: int) -> None:
    logits = random_logits(64, seed=3)
    rows = [[chooser(seed=i, top_k=k) for i in range(64)] for k in (0, top_k)]
    off, on = (make_sampler().sample(logits.clone(), some) for some in rows)
    assert on == off


def test_greedy_rows_and_beams_stand_beside_random_ones() -> None:
    logits = random_logits(5, seed=4)
    beam = SamplingState(BeamSearchParams(beam_width=2, max_tokens=5), 0, [])
    rows = [chooser(temperature=0), chooser(seed=1), beam, chooser(seed=2, top_k=1), chooser(temperature=0, logprobs=1)]
    samples = make_sampler().sample(logits.clone(), rows)
    largest = logits.argmax(-1).tolist()
    assert [samples[i].token_id for i in (0, 2, 3, 4)] == [largest[i] for i in (0, 2, 3, 4)]
    assert samples[1] == one(logits[1:2], chooser(seed=1))


def test_top_k_keeps_all_that_are_as_likely_as_the_last() -> None:
    logits = torch.full((1, VOCAB), -9.0)
    logits[0, 10], logits[0, 20:24] = 5.0, 4.0
    assert set(draw_many(logits, 2000, top_k=2)) == {10, 20, 21, 22, 23}


def test_tiny_temperatures_do_not_overflow() -> None:
    logits = random_logits(spread=100.0)
    sample = one(logits, chooser(temperature=1e-38))
    assert sample.token_id == int(logits.argmax())
    assert one(logits, chooser(temperature=1e-300)).token_id == int(logits.argmax())


# --- rows are independent ------------------------------------------------------------------------------


def mixed_params(i: int) -> dict[str, Any]:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {},
        {"temperature": 0.7, "top_k": 3 + i},
        {"top_p": 0.8, "logprobs": 3},
        {"min_p": 0.05, "repetition_penalty": 1.3},
        {"temperature": 0.005},
        {"temperature": 0, "logprobs": i % 20, "presence_penalty": 1.0},
        {"top_k": 50, "top_p": 0.95, "min_p": 0.01, "logit_bias": {3: 5.0}, "frequency_penalty": 0.5},
        {"allowed_token_ids": list(range(i, i + 30)), "bad_word_ids": ((i,),), "min_tokens": 4},
    ]
    return kinds[i % len(kinds)]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("ops", [OPS, select.reference()], ids=["chosen", "reference"])
def test_a_row_gives_the_same_bits_in_any_company(ops: select.Ops, threads: Any, count: int) -> None:
    threads(count)
    logits = (random_logits(45, 5003, seed=5) * 8).round() / 8  # many ties, as bfloat16 models have
    rows = [chooser((1, 2, 3), (4, 5, 4), seed=i, **mixed_params(i)) for i in range(45)]
    sampler = make_sampler(ops=ops)
    together = sampler.sample(logits.clone(), rows)
    for start in range(0, 45, 7):
        some = range(start, min(start + 7, 45))
        fresh = [chooser((1, 2, 3), (4, 5, 4), seed=i, **mixed_params(i)) for i in some]
        assert sampler.sample(logits[start : start + 7].clone(), fresh) == together[start : start + 7]
    for i in (0, 1, 2, 3, 7, 8, 30, 44):
        fresh_one = chooser((1, 2, 3), (4, 5, 4), seed=i, **mixed_params(i))
        assert one(logits[i : i + 1], fresh_one, sampler) == together[i]


# --- log-probabilities ---------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = random_logits(seed=9)
    row = chooser((), (1,), temperature=0.3, top_k=2, logit_bias={5: 50.0}, logprobs=4)
    sample = one(logits, row)
    assert sample.token_id == 5
    raw = torch.log_softmax(logits[0].double(), -1)
    assert sample.logprobs.logprob == pytest.approx(raw[5].item(), abs=1e-5)
    assert sample.logprobs.rank == int((raw > raw[5]).sum()) + 1
    values, ids = raw.topk(4)
    assert [token for token, _ in sample.logprobs.top] == ids.tolist()
    np.testing.assert_allclose([value for _, value in sample.logprobs.top], values.numpy(), atol=1e-5)


def test_logprobs_zero_reports_the_token_alone_and_minus_one_the_whole_vocabulary() -> None:
    logits = random_logits(2)
    alone, everything = make_sampler().sample(logits.clone(), [chooser(logprobs=0), chooser(logprobs=-1)])
    assert alone.logprobs is not None
    assert alone.logprobs.top == ()
    assert everything.logprobs is not None
    assert sorted(token for token, _ in everything.logprobs.top) == list(range(VOCAB))
    values = [value for _, value in everything.logprobs.top]
    assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("wanted", [[0, 3, 0, 20, 1], [ALL, 3, 0, ALL, 0], [ALL] * 5, [0] * 5])
def test_rows_that_want_many_alternatives_stand_beside_those_that_want_few(wanted: list[int]) -> None:
    logits, tokens = random_logits(5, seed=8), [5, 6, 7, 8, 9]
    together = token_logprobs(OPS.logprobs, logits, tokens, wanted)
    for i, entry in enumerate(together):
        assert token_logprobs(OPS.logprobs, logits[i : i + 1], tokens[i : i + 1], wanted[i : i + 1]) == [entry]
        assert entry.token_id == tokens[i]
        assert len(entry.top) == (VOCAB if wanted[i] == ALL else wanted[i])


def test_equal_logprobs_come_in_order_of_id() -> None:
    (entry,) = token_logprobs(reference.logprobs, torch.zeros(1, 50), [9], [3])
    assert entry.rank == 1
    assert [token for token, _ in entry.top] == [0, 1, 2]


@pytest.mark.parametrize("changes", [{"logit_bias": {5: 50.0}}, {"allowed_token_ids": [9]}, {"presence_penalty": 2.0}])
def test_changes_to_one_row_leave_the_reports_of_all_rows_raw(changes: dict[str, Any]) -> None:
    logits = random_logits(3, seed=9)
    asked: list[dict[str, Any]] = [{"logprobs": 2}, {"logprobs": 3, **changes}, {"logprobs": 1}]
    for last in (asked[2], {}):
        rows = [chooser((), (int(logits[i].argmax()),), temperature=0, **a) for i, a in enumerate([*asked[:2], last])]
        for i, sample in enumerate(make_sampler().sample(logits.clone(), rows)):
            if sample.logprobs is None:
                continue
            raw = torch.log_softmax(logits[i].double(), -1)
            assert sample.logprobs.logprob == pytest.approx(raw[sample.token_id].item(), abs=1e-5)
            assert sample.logprobs.top[0] == (int(raw.argmax()), pytest.approx(raw.max().item(), abs=1e-5))


def test_best_of_reports_logprobs_so_that_completions_can_be_ranked() -> None:
    sample = one(random_logits(), chooser(n=1, best_of=3))
    assert sample.logprobs is not None


# --- beams ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_beams_get_twice_as_many_candidates_as_their_width(temperature: float) -> None:
    logits = random_logits(2)
    params = BeamSearchParams(beam_width=3, max_tokens=5, temperature=temperature)
    row = SamplingState(params, 0, [])
    sample, other = make_sampler().sample(logits.clone(), [row, chooser(temperature=0)])
    expected = torch.log_softmax(logits[0].double() / (temperature or 1), -1)
    values, ids = expected.topk(6)
    assert [token for token, _ in sample.candidates] == ids.tolist()
    np.testing.assert_allclose([value for _, value in sample.candidates], values.numpy(), atol=1e-5)
    assert row.output_ids == []
    assert other.candidates == ()


def test_very_cold_beams_have_one_candidate_that_is_certain() -> None:
    logits = random_logits(spread=100.0)
    sample = one(logits, SamplingState(BeamSearchParams(beam_width=2, max_tokens=5, temperature=1e-300), 0, []))
    assert sample.candidates[0] == (int(logits.argmax()), 0.0)
    assert [value for _, value in sample.candidates[1:]] == [-math.inf] * 3


# --- errors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_k": 3}, {"top_p": 0.5}])
def test_a_row_with_everything_forbidden_fails_alone(params: dict[str, Any]) -> None:
    logits = random_logits(2)
    rows = [chooser(allowed_token_ids=[3], bad_word_ids=((3,),), **params), chooser(temperature=0)]
    bad, good = make_sampler().sample(logits.clone(), rows)
    assert bad.error is not None
    assert "No token can be chosen" in bad.error[1]
    assert bad.error != NOT_FINITE
    assert rows[0].output_ids == []
    assert good.token_id == int(logits[1].argmax())


@pytest.mark.parametrize("params", [{"temperature": 0}, {}, {"top_p": 0.5}])
def test_logits_that_are_no_numbers_are_an_error_not_a_token(params: dict[str, Any]) -> None:
    logits = random_logits(3)
    logits[1, 5] = math.nan
    samples = make_sampler().sample(logits.clone(), [chooser(**params) for _ in range(3)])
    assert [sample.error for sample in samples] == [None, NOT_FINITE, None]

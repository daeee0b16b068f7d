"""What requests ask to be done to their logits, against formulas."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from sampler_rig import VOCAB, chooser, make_sampler, one, random_logits

from quire.engine.sampling.logits_edits import TokenCounts
from quire.engine.sampling.sampler import SamplingState
from quire.params.sampling import SamplingParams


def changed(logits: torch.Tensor, row: SamplingState) -> np.ndarray:
    logits = logits.clone()
    make_sampler()._change_logits(logits, [row], None)
    return logits[0].numpy()


def test_logit_bias_is_added() -> None:
    logits = random_logits()
    expected = logits[0].numpy().copy()
    expected[5] += 2.5
    expected[9] -= 100.0
    assert (changed(logits, chooser(logit_bias={5: 2.5, 9: -200.0})) == expected).all()


def test_allowed_tokens_are_the_only_ones_left() -> None:
    logits = random_logits()
    found = changed(logits, chooser(allowed_token_ids=[3, 200]))
    assert np.flatnonzero(np.isfinite(found)).tolist() == [3, 200]
    assert found[3] == logits[0, 3].item()


@pytest.mark.parametrize(("output", "banned"), [((), {4}), ((8,), {4}), ((1, 8), {4, 9}), ((8, 1), {4})])
def test_bad_words_cannot_be_completed(output: tuple[int, ...], banned: set[int]) -> None:
    found = changed(random_logits(), chooser((1,), output, bad_word_ids=((4,), (1, 8, 9))))
    assert set(np.flatnonzero(np.isinf(found)).tolist()) == banned


def test_end_of_text_and_stop_ids_wait_for_min_tokens() -> None:
    logits = random_logits()
    early = changed(logits, chooser((), (1, 2), min_tokens=3, stop_token_ids=[11]))
    assert np.flatnonzero(np.isinf(early)).tolist() == [7, 11]
    late = changed(logits, chooser((), (1, 2, 3), min_tokens=3, stop_token_ids=[11]))
    assert np.isfinite(late).all()


@pytest.mark.parametrize(
    ("repetition", "frequency", "presence"), [(1.5, 0, 0), (0.7, 0, 0), (1, 0.8, 0), (1, 0, -1.2), (1.2, 0.3, 0.4)]
)
def test_penalties_follow_their_formulas(repetition: float, frequency: float, presence: float) -> None:
    logits, prompt, output = random_logits(), (1, 2, 2, 3), (3, 3, 5)
    row = chooser(prompt, output, repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence)
    expected = logits[0].tolist()
    for token in {*prompt, *output}:
        expected[token] = expected[token] / repetition if expected[token] > 0 else expected[token] * repetition
    for token, count in Counter(output).items():
        expected[token] -= frequency * count + presence
    np.testing.assert_allclose(changed(logits, row), expected, rtol=1e-5, atol=1e-6)


def test_running_counts_equal_counts_from_scratch() -> None:
    rng = np.random.default_rng(0)
    prompt, output = rng.integers(0, 50, 30).tolist(), rng.integers(0, 200, 400).tolist()
    grown = TokenCounts(prompt, output[:100])
    for token in output[100:]:
        grown.add(token)
    whole = TokenCounts(prompt, output)
    assert dict(zip(grown.ids.tolist(), grown.counts.tolist(), strict=True)) == dict(
        zip(whole.ids.tolist(), whole.counts.tolist(), strict=True)
    )
    tally = Counter(output)
    assert {i: tally[i] for i in {*prompt, *output}} == dict(
        zip(whole.ids.tolist(), whole.counts.astype(int).tolist(), strict=True)
    )


def test_penalties_see_tokens_as_they_come() -> None:
    row = chooser(temperature=0, presence_penalty=2.0)
    logits = torch.full((1, VOCAB), -50.0)
    logits[0, [3, 4, 5]] = torch.tensor([3.0, 2.0, 1.5])
    assert [one(logits, row).token_id for _ in range(4)] == [3, 4, 5, 3]


def test_a_request_that_asks_for_nothing_has_no_edits() -> None:
    assert not SamplingParams(temperature=0.3, top_p=0.5, seed=3, logprobs=2).edits_logits
    assert chooser(temperature=0).is_plain_greedy
    assert not chooser(temperature=0, logprobs=0).is_plain_greedy

"""Predictions are drafts, requests may turn drafts off, and what was drafted is counted."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, greedy, make_rig, related_prompts
from speculation_rig import ReplayDrafter, with_drafter

from quire.errors import BadRequest
from quire.hooks import registry
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.types import SpeculationStats
from quire.types.predicted_output import PredictedOutput

PROMPTS = related_prompts(6, seed=8)


def followed(prediction: Sequence[int], output: Sequence[int]) -> tuple[list[int], int]:
    """How many of the next 4 tokens are predicted before each token of the output; tokens of the prediction found."""
    place = PredictedOutput(prediction)
    right = []
    for i, token_id in enumerate(output):
        following = list(place.following(4))
        right.append(
            next((n for n, each in enumerate(following) if output[i + n : i + n + 1] != [each]), len(following))
        )
        place.advance([token_id])
    return right, place.num_found


def test_a_right_prediction_is_followed_to_its_end() -> None:
    text = list(range(10, 22))
    right, found = followed(text, text)
    assert right == [4] * 9 + [3, 2, 1]
    assert found == 12


@pytest.mark.parametrize(
    ("output", "found"),
    [
        ([1, 2, 3, 99, 5, 6, 7, 8, 9], 8),  # one replaced
        ([1, 2, 3, 99, 4, 5, 6, 7, 8, 9], 9),  # one inserted
        ([1, 2, 3, 97, 98, 99, 4, 5, 6, 7, 8, 9], 9),  # three inserted
        ([1, 2, 7, 8, 9], 5),  # four left out
        ([7, 8, 9, 1, 2, 3], 6),  # in another order
        ([99, 98], 0),
        ([99, 1, 2, 3], 3),  # one before
        ([], 0),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3], 9),  # twice: each token of the prediction counts once
    ],
)
def test_the_place_is_found_again_where_an_output_differs(output: list[int], found: int) -> None:
    assert followed([1, 2, 3, 4, 5, 6, 7, 8, 9], output)[1] == found


def test_of_several_places_that_with_more_tokens_in_agreement_counts() -> None:
    prediction = [5, 1, 2, 50, 6, 1, 2, 60, 7, 1, 2, 70]
    place = PredictedOutput(prediction)
    place.advance([99, 98, 7, 1, 2])
    assert place.following(1) == [70]
    place.advance([97, 6, 1, 2])
    assert place.following(2) == [60, 7]


def test_a_long_prediction_of_one_token_takes_no_long_time_and_counts_stay_within_it() -> None:
    rng = random.Random(1)
    place = PredictedOutput([7] * 100_000)
    place.advance(rng.choice((7, 8)) for _ in range(3000))
    assert 0 < place.num_found <= 3000


def spoiled(tokens: Sequence[int], every: int) -> tuple[int, ...]:
    return tuple(token if i % every else (token + 1) % 256 for i, token in enumerate(tokens, 1))


@pytest.mark.parametrize("every", [3, 7, 1000])
@pytest.mark.parametrize(
    "config", [{}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}], ids=str
)
def test_predictions_change_no_answer(folder: Path, plain: Rig, config: dict[str, Any], every: int) -> None:
    params = [greedy(30, ignore_eos=True), SamplingParams(temperature=1.1, seed=4, max_tokens=30, ignore_eos=True)]
    rig = make_rig(folder, **config)
    try:
        for each in params:
            for prompt, expected in zip(PROMPTS, plain.tokens(PROMPTS, each), strict=True):
                predicting = replace(each, prediction_ids=spoiled(expected, every))
                assert rig.tokens([prompt], predicting) == [expected]
        counts = rig.engine.stats().speculation
        assert counts is not None
        assert counts.num_accepted_tokens_total > 0
        rig.engine.step()
        assert rig.engine.stats().num_pages_used == 0
    finally:
        rig.engine.close()


def test_a_right_prediction_saves_steps_without_a_drafter(folder: Path, plain: Rig) -> None:
    params = greedy(60, ignore_eos=True)
    (expected,) = plain.tokens([PROMPTS[0]], params)
    rig = make_rig(folder, max_num_batched_tokens=64)
    try:
        assert rig.engine.stats().speculation is None
        assert rig.tokens([PROMPTS[0]], replace(params, prediction_ids=tuple(expected))) == [expected]
        stats = rig.engine.stats()
        assert stats.num_steps_total < 40
        assert stats.speculation is not None
        num_accepted = stats.speculation.num_accepted_tokens_total
        assert num_accepted == stats.speculation.num_draft_tokens_total == 60 - stats.num_steps_total
    finally:
        rig.engine.close()


def test_the_drafter_drafts_where_the_prediction_has_nothing_to_say(folder: Path, plain: Rig) -> None:
    params = greedy(40, ignore_eos=True)
    (expected,) = plain.tokens([PROMPTS[0]], params)
    drafter = ReplayDrafter({tuple(PROMPTS[0]): [expected]}, 0.0)
    config = {"speculative_config": {"method": "replay", "num_speculative_tokens": 4, "adaptive": False}}
    rig = make_rig(folder, with_drafter(registry.load(None), drafter), **config)
    try:
        assert rig.tokens([PROMPTS[0]], replace(params, prediction_ids=tuple(expected[:20]))) == [expected]
        assert 0 < drafter.num_drafted < 25
    finally:
        rig.engine.close()


@pytest.mark.parametrize("speculative", [False, None, True])
def test_a_request_may_turn_drafts_off(folder: Path, plain: Rig, speculative: bool | None) -> None:
    params = greedy(20, ignore_eos=True)
    (expected,) = plain.tokens([PROMPTS[0]], params)
    drafter = ReplayDrafter({tuple(PROMPTS[0]): [expected]}, 0.0)
    config = {"speculative_config": {"method": "replay", "num_speculative_tokens": 4, "adaptive": False}}
    rig = make_rig(folder, with_drafter(registry.load(None), drafter), **config)
    asked = replace(params, speculative=speculative, prediction_ids=tuple(expected[:10]))
    try:
        assert rig.tokens([PROMPTS[0]], asked) == [expected]
        counts = rig.engine.stats().speculation
        assert counts is not None
        assert (counts.num_draft_tokens_total > 0) == (drafter.num_drafted > 0) == (speculative is not False)
    finally:
        rig.engine.close()


def test_drafts_are_counted_by_position(folder: Path, plain: Rig) -> None:
    params = greedy(21, ignore_eos=True)
    (expected,) = plain.tokens([PROMPTS[0]], params)
    wrong = list(expected)
    wrong[3::4] = [(token + 1) % 256 for token in wrong[3::4]]  # of output tokens 3, 7, 11, …
    drafter = ReplayDrafter({}, 0.0)
    drafter._draft = lambda query: _of(wrong, query)  # type: ignore[method-assign]
    config = {"speculative_config": {"method": "replay", "num_speculative_tokens": 4, "adaptive": False}}
    rig = make_rig(folder, with_drafter(registry.load(None), drafter), max_num_batched_tokens=64, **config)
    try:
        assert rig.tokens([PROMPTS[0]], params) == [expected]
        # after the prompt 1 token; of tokens 1 to 4 the first two are right, of 4 to 7, 8 to 11, … the first three
        assert rig.engine.stats().speculation == SpeculationStats(
            num_drafts_total=5, num_draft_tokens_total=20, num_accepted_per_position=(5, 5, 4, 0)
        )
    finally:
        rig.engine.close()


def _of(text: Sequence[int], query: Any) -> Any:
    from quire.records import Draft

    done = len(query.token_ids) - query.prompt_len
    return Draft(list(text[done : done + query.max_drafts]))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"prediction_ids": [-1]}, "`prediction_ids` must be a list of token ids"),
        ({"prediction_ids": [1.5]}, "`prediction_ids` must be a list of token ids"),
        ({"prediction_ids": [1] * (2**20 + 1)}, "`prediction_ids` takes at most 1048576 token ids"),
        ({"prediction": 3}, "`prediction` must be a string"),
        ({"prediction": "a", "prediction_ids": [1]}, "the only one of `prediction` and `prediction_ids`"),
        ({"speculative": 1}, "`speculative` must be true or false"),
    ],
)
def test_wrong_parameters_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        SamplingParams(**wrong)


def test_ids_outside_the_vocabulary_are_refused(plain: Rig) -> None:
    with pytest.raises(BadRequest, match="`prediction_ids` has token id 999999; the vocabulary has ids"):
        plain.add(PROMPTS[0], SamplingParams(prediction_ids=(1, 999_999)))


def test_a_beam_search_that_asks_for_drafts_is_refused() -> None:
    assert BeamSearchParams(beam_width=2, max_tokens=3, speculative=False).speculative is False
    with pytest.raises(BadRequest, match="`speculative` has no effect with a beam search"):
        BeamSearchParams(beam_width=2, max_tokens=3, speculative=True)

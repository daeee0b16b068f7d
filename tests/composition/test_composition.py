"""Every pair of features works: any two asked for together, in any way of running, and any two ways of running.

The answer in the plainest engine, alone, is what every other way must give.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import pytest
import torch
from composition.features import FEATURES, SETTINGS, Feature, Setting
from engine_rig import Answer, Rig, greedy, make_rig, random_ids

from quire import registry
from quire.sampling import BeamSearchParams, SamplingParams
from quire.testing.tiny import tiny_llama

PROMPT = list(b"The quick brown fox jumps over")
PLAIN = Setting("plain", {"enable_prefix_caching": False, "max_num_batched_tokens": 64, "max_num_seqs": 8})


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Engines by their settings, made when first needed."""
    folder = tiny_llama(tmp_path_factory.mktemp("composition") / "tiny", seed=3)
    found = registry.load(None)
    made: list[Rig] = []

    @cache
    def rig(settings: str) -> Rig:
        made.append(make_rig(folder, found, **json.loads(settings)))
        return made[-1]

    yield lambda settings: rig(json.dumps(dict(settings), sort_keys=True))
    for each in made:
        each.engine.close()


def _params(*features: Feature) -> SamplingParams:
    merged: dict[str, Any] = {"max_tokens": 14, "temperature": 0, "ignore_eos": False}
    for feature in features:
        merged |= feature.params
    return SamplingParams(**merged)


def _ask(rig: Rig, features: tuple[Feature, ...], ways: tuple[Setting, ...]) -> list[Answer]:
    """Answers to the one request, after and beside the others that the ways of running call for."""
    request: dict[str, Any] = {}
    for feature in features:
        request |= feature.request
    if any(way.warm for way in ways):
        rig.add(PROMPT, _params(*features), **request)
        rig.drain()
    rng = random.Random(9)
    for _ in range(max((way.company for way in ways), default=0)):
        rig.add(random_ids(rng, rng.randrange(4, 30)), greedy(20, ignore_eos=True))
    request_id = rig.add(PROMPT, _params(*features), **request)
    answers = {index: answer for (owner, index), answer in rig.drain().items() if owner == request_id}
    return [answers[index] for index in sorted(answers)]


def _settings(*ways: Setting) -> dict[str, Any] | None:
    """The settings of all ways, or None if they contradict each other."""
    merged: dict[str, Any] = {}
    for way in ways:
        for name, value in way.settings.items():
            if merged.get(name, value) != value:
                return None
            merged[name] = value
    return merged


def _same(answers: list[Answer], others: list[Answer]) -> bool:
    def told(answer: Answer) -> tuple[Any, ...]:
        return answer.token_ids, answer.last.finish_reason, answer.last.stop_reason

    return [told(answer) for answer in answers] == [told(answer) for answer in others]


PAIRS = [
    pytest.param((a, b), id=f"{a.name} x {b.name}")
    for a, b in combinations(FEATURES, 2)
    if a.name not in b.clashes and b.name not in a.clashes
]


@pytest.mark.parametrize("pair", PAIRS)
def test_two_features_on_one_request_both_hold_in_every_way_of_running(rigs: Any, pair: tuple[Feature, ...]) -> None:
    plain = _ask(rigs(PLAIN.settings), pair, ())
    for way in SETTINGS:
        answers = _ask(rigs(way.settings), pair, (way,))
        for feature in pair:
            feature.check(answers)
        assert _same(answers, plain), way.name


WAYS = [
    pytest.param((a, b), id=f"{a.name} x {b.name}") for a, b in combinations(SETTINGS, 2) if _settings(a, b) is not None
]


@pytest.mark.parametrize("ways", WAYS)
def test_two_ways_of_running_together_change_no_answer(rigs: Any, ways: tuple[Setting, ...]) -> None:
    rig = rigs(_settings(*ways))
    for feature in FEATURES:
        assert _same(_ask(rig, (feature,), ways), _ask(rigs(PLAIN.settings), (feature,), ())), feature.name


def test_the_ways_that_should_preempt_do(rigs: Any) -> None:
    for way in SETTINGS:
        if way.name in ("recompute", "swap"):
            _ask(rigs(way.settings), FEATURES[:1], (way,))
            stats = rigs(way.settings).engine.stats()
            assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0, way.name


@pytest.mark.parametrize("ways", [(way,) for way in SETTINGS], ids=[way.name for way in SETTINGS])
def test_beam_search_gives_the_same_in_every_way_of_running(rigs: Any, ways: tuple[Setting, ...]) -> None:
    def beams(rig: Rig, company: int) -> list[Answer]:
        rng = random.Random(9)
        for _ in range(company):
            rig.add(random_ids(rng, rng.randrange(4, 30)), greedy(20, ignore_eos=True))
        request_id = rig.add(PROMPT, BeamSearchParams(beam_width=3, max_tokens=10))
        answers = {index: answer for (owner, index), answer in rig.drain().items() if owner == request_id}
        return [answers[index] for index in sorted(answers)]

    plain = beams(rigs(PLAIN.settings), 0)
    assert len(plain) == 3
    assert _same(beams(rigs(ways[0].settings), ways[0].company), plain)

"""Every pair of features works: any two asked for together, in any way of running, and any two ways of running.

The answer in the plainest engine, alone, is what every other way must give.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import pytest
from composition.asking import PLAIN, Rigs, ask, beams, rigs_of, same, settings_of
from composition.features import FEATURES, SETTINGS, Feature, Setting
from engine_rig import Answer, greedy

from quire.hooks import registry
from quire.types import background
from quire_testing.tiny import tiny_llama

PROMPT = list(b"The quick brown fox jumps over")

TURNS = 9
"""Every ninth of the triples (feature, feature, way) and (way, way, feature) is tested: so is every pair of features,
of a feature and a way, and of ways."""


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rigs]:
    """Engines by their settings, made when first needed."""
    folder = tiny_llama(tmp_path_factory.mktemp("composition") / "tiny", seed=3)
    with rigs_of(folder, registry.load(None)) as made:
        yield made


PAIRS = [
    pytest.param((a, b), SETTINGS[(i + j) % TURNS :: TURNS], id=f"{a.name} x {b.name}")
    for (i, a), (j, b) in combinations(enumerate(FEATURES), 2)
    if a.name not in b.clashes and b.name not in a.clashes
]


@pytest.mark.parametrize(("pair", "ways"), PAIRS)
def test_two_features_on_one_request_both_hold_in_several_ways_of_running(
    rigs: Rigs, pair: tuple[Feature, ...], ways: tuple[Setting, ...]
) -> None:
    plain = ask(rigs(PLAIN.settings), PROMPT, pair, ())
    for way in ways:
        answers = ask(rigs(way.settings), PROMPT, pair, (way,))
        for feature in pair:
            feature.check(answers)
        assert same(answers, plain), way.name


def test_tenants_share_no_cached_pages(rigs: Rigs) -> None:
    rig = rigs(SETTINGS[0].settings)

    def num_cached(tenant: str) -> int:
        owner = rig.add(PROMPT, greedy(2), client=tenant, cache_salt=f"{tenant}\0")
        (answer,) = [answer for (each, _), answer in rig.drain().items() if each == owner]
        return answer.deltas[0].num_cached_tokens or 0

    assert num_cached("one") == num_cached("two") == 0
    assert num_cached("one") > 0


WAYS = [
    pytest.param((a, b), FEATURES[(i + j) % TURNS :: TURNS], id=f"{a.name} x {b.name}")
    for (i, a), (j, b) in combinations(enumerate(SETTINGS), 2)
    if settings_of(a, b) is not None
]


@pytest.fixture(scope="module")
def plain(rigs: Rigs) -> dict[str, list[Answer]]:
    """What each feature gives in the plainest engine, alone."""
    return {feature.name: ask(rigs(PLAIN.settings), PROMPT, (feature,), ()) for feature in FEATURES}


@pytest.mark.parametrize(("ways", "features"), WAYS)
def test_two_ways_of_running_together_change_no_answer(
    rigs: Rigs, plain: dict[str, list[Answer]], ways: tuple[Setting, ...], features: tuple[Feature, ...]
) -> None:
    settings = settings_of(*ways)
    assert settings is not None
    rig = rigs(settings)
    for feature in features:
        assert same(ask(rig, PROMPT, (feature,), ways), plain[feature.name]), feature.name


@pytest.mark.parametrize("feature", FEATURES, ids=[feature.name for feature in FEATURES])
def test_a_request_in_the_background_is_answered_as_any_other(
    rigs: Rigs, plain: dict[str, list[Answer]], feature: Feature
) -> None:
    behind = replace(feature, request={**feature.request, "client": background("a")})
    way = next(way for way in SETTINGS if way.name == "recompute")
    assert same(ask(rigs(way.settings), PROMPT, (behind,), (way,)), plain[feature.name])


def test_the_ways_that_should_preempt_do(rigs: Rigs) -> None:
    for way in SETTINGS:
        if way.name in ("recompute", "swap"):
            ask(rigs(way.settings), PROMPT, FEATURES[:1], (way,))
            stats = rigs(way.settings).engine.stats()
            assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0, way.name


def test_pages_are_taken_from_host_memory(rigs: Rigs) -> None:
    (way,) = (way for way in SETTINGS if way.from_tier)
    ask(rigs(way.settings), PROMPT, FEATURES[:1], (way,))
    tiers = rigs(way.settings).engine.stats().kv_tiers
    assert tiers is not None
    assert tiers.num_hit_tokens_total > 0


@pytest.mark.parametrize("way", SETTINGS, ids=[way.name for way in SETTINGS])
def test_beam_search_gives_the_same_in_every_way_of_running(rigs: Rigs, way: Setting) -> None:
    plain = beams(rigs(PLAIN.settings), PROMPT, PLAIN)
    assert len(plain) == 3
    assert same(beams(rigs(way.settings), PROMPT, way), plain)

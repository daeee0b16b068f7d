"""What a request may ask for works on models that keep state, in any way of running, with and without an adapter.

Not every feature again: those that fork, cut or repeat what a state has gone through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from composition.asking import PLAIN, Rigs, ask, beams, check_in_ways, rigs_of, same, some_text
from composition.features import FEATURES, SETTINGS, Feature, Setting
from engine_rig import Rig
from hybrid_rig import hybrid_folder, hybrid_registry, lora_on_state

from quire.types import AdapterRef, WeightedAdapter

PROMPT = list(b"The quick brown fox jumps over")
CHOSEN = ("n", "best of", "logprobs", "prompt logprobs", "choice", "schema", "salt", "stream")
ASKED = [feature for feature in FEATURES if feature.name in CHOSEN]
ADAPTED = Feature("adapter", {}, lambda answers: None, request={"adapters": (WeightedAdapter(AdapterRef(name="a")),)})


@pytest.fixture(scope="module", params=["hybrid", "parallel", "state only"])
def rigs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Rigs]:
    root = tmp_path_factory.mktemp("hybrids")
    adapter = lora_on_state(root / "adapter")

    def load_adapter(rig: Rig) -> None:
        if request.param == "hybrid":
            rig.engine.load_adapter("a", adapter)

    with rigs_of(hybrid_folder(root, request.param), hybrid_registry(), load_adapter) as made:
        yield lambda settings: made({**settings, "load_format": "dummy"})


@pytest.mark.parametrize("way", SETTINGS, ids=[way.name for way in SETTINGS])
def test_features_hold_in_every_way_of_running(rigs: Rigs, way: Setting, request: pytest.FixtureRequest) -> None:
    number = SETTINGS.index(way)
    for feature in ASKED[number % 2 :: 2]:  # each in every other way
        check_in_ways(rigs, PROMPT, feature, (way,), some_text)
    if "[hybrid" in request.node.name:
        check_in_ways(rigs, PROMPT, ADAPTED, (way,), beside_adapted)


def beside_adapted(rng: Any, number: int) -> tuple[Any, Mapping[str, Any]]:
    """Another prompt, every other one with the adapter."""
    return some_text(rng, number)[0], ADAPTED.request if number % 2 else {}


@pytest.mark.parametrize("way", SETTINGS, ids=[way.name for way in SETTINGS])
def test_beam_search_gives_the_same_in_every_way_of_running(rigs: Rigs, way: Setting) -> None:
    plain = beams(rigs(PLAIN.settings), PROMPT, PLAIN)
    assert len(plain) == 3
    assert same(beams(rigs(way.settings), PROMPT, way), plain)


def test_the_ways_that_should_preempt_do(rigs: Rigs) -> None:
    for way in SETTINGS:
        if way.name in ("recompute", "swap"):
            ask(rigs(way.settings), PROMPT, ASKED[:1], (way,))
            stats = rigs(way.settings).engine.stats()
            assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0, way.name

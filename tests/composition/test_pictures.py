"""Every feature works on a prompt with pictures in it, in any way of running, beside others with and without some.

The answer in the plainest engine, alone, is what every other way must give.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from composition.asking import PLAIN, Others, Rigs, ask, beams, beside, check_in_ways, rigs_of, same
from composition.features import PICTURE_FEATURES, SETTINGS, Feature, Setting
from engine_rig import Rig
from llava_adapted import ADAPTERS as OF_LLAVA, Kit, uses
from llava_rig import CASES, Model, picture

from quire.hooks import registry
from quire.records import Registry
from quire.types import Prompt

ADAPTERS = ("all", "tower")


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None, enable_lora=True)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    folder = tmp_path_factory.mktemp("pictures")
    return Kit(folder, Model(folder / "base", CASES["1.5"]), {name: OF_LLAVA[name] for name in ADAPTERS})


@pytest.fixture(scope="module")
def rigs(kit: Kit, found: Registry) -> Iterator[Rigs]:
    def load_adapters(rig: Rig) -> None:
        for name, folder in kit.folders.items():
            rig.engine.load_adapter(name, folder)

    with rigs_of(kit.model.folder, found, load_adapters) as made:
        yield made


@pytest.fixture(scope="module")
def prompts(kit: Kit, found: Registry, rigs: Rigs) -> list[Prompt]:
    """The one looked at, and others that have pictures too, one of them the same."""
    info = rigs(PLAIN.settings).engine.info
    asked = [("a <image> or <image>?", [1, 2]), ("<image> b", [1]), ("c <image>", [3])]
    return [kit.model.prompt(found, info, text, *map(picture, seeds)) for text, seeds in asked]


@pytest.fixture(scope="module")
def others(prompts: list[Prompt]) -> Others:
    return beside(prompts, ADAPTERS)


# each in every other way, and every way with every other feature
ASKED = [
    pytest.param(feature, SETTINGS[number % 2 :: 2], id=feature.name) for number, feature in enumerate(PICTURE_FEATURES)
]


@pytest.mark.parametrize(("feature", "ways"), ASKED)
def test_a_feature_holds_on_pictures_in_several_ways_of_running(
    rigs: Rigs, prompts: list[Prompt], others: Others, feature: Feature, ways: tuple[Setting, ...]
) -> None:
    check_in_ways(rigs, prompts[0], feature, ways, others)


@pytest.mark.parametrize("adapters", [(), ("all",), ADAPTERS], ids=["base", "adapter", "two adapters"])
@pytest.mark.parametrize("way", SETTINGS, ids=[way.name for way in SETTINGS])
def test_beam_search_on_pictures_gives_the_same_in_every_way_of_running(
    rigs: Rigs, prompts: list[Prompt], others: Others, way: Setting, adapters: tuple[str, ...]
) -> None:
    plain = beams(rigs(PLAIN.settings), prompts[0], PLAIN, adapters=uses(*adapters))
    assert len(plain) == 3
    assert same(beams(rigs(way.settings), prompts[0], way, others, adapters=uses(*adapters)), plain)


def test_the_ways_that_should_preempt_do(rigs: Rigs, prompts: list[Prompt], others: Others) -> None:
    for way in SETTINGS:
        if way.name in ("recompute", "swap"):
            ask(rigs(way.settings), prompts[0], PICTURE_FEATURES[:1], (way,), others)
            stats = rigs(way.settings).engine.stats()
            assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0, way.name


def test_the_adapter_and_the_pictures_change_the_answer(rigs: Rigs, prompts: list[Prompt], kit: Kit) -> None:
    adapter = next(feature for feature in PICTURE_FEATURES if feature.name == "adapter")
    rig = rigs(PLAIN.settings)
    answers = [ask(rig, prompts[0], features, ())[0].token_ids for features in ((), (adapter,))]
    answers.append(ask(rig, prompts[0].token_ids, (), ())[0].token_ids)
    assert len({tuple(answer) for answer in answers}) == 3

"""What a request may ask for works on a prompt with pictures or audio in it, in any way of running, beside others.

The answer in the plainest engine, alone, is what every other way must give. On audio not every feature again: those
that touch where media lie, what is kept of them, and which requests share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llava_adapted
import pytest
import qwen_audio_adapted
from composition.asking import PLAIN, Others, Rigs, ask, beams, beside, check_in_ways, rigs_of, same
from composition.features import PICTURE_FEATURES, SETTINGS, Feature, Setting
from engine_rig import Rig
from llava_adapted import uses
from llava_rig import CASES, Model, picture
from qwen_audio_rig import sound

from quire.hooks import registry
from quire.records import Registry
from quire.types import Prompt

ADAPTERS = ("all", "tower")
ON_AUDIO = ("n", "logprobs", "prompt logprobs", "choice", "salt", "adapter", "stream")
FEATURES = {
    "pictures": PICTURE_FEATURES,
    "audio": tuple(feature for feature in PICTURE_FEATURES if feature.name in ON_AUDIO),
}


@dataclass(frozen=True)
class Medium:
    """A tiny model with adapters, and texts with their media: one that is looked at, and others beside it."""

    kit: Any
    asked: Sequence[tuple[str, Sequence[Any]]]


def pictures(folder: Path) -> Medium:
    found = {name: llava_adapted.ADAPTERS[name] for name in ADAPTERS}
    kit = llava_adapted.Kit(folder, Model(folder / "base", CASES["1.5"]), found)
    first, second, third = map(picture, (1, 2, 3))
    return Medium(kit, [("a <image> or <image>?", [first, second]), ("<image> b", [first]), ("c <image>", [third])])


def audio(folder: Path) -> Medium:
    first, second, third = sound(1, 0.6), sound(2, 0.33), sound(3, 0.7)
    asked = [("a <|AUDIO|> or <|AUDIO|>?", [first, second]), ("<|AUDIO|> b", [first]), ("c <|AUDIO|>", [third])]
    return Medium(qwen_audio_adapted.Kit(folder, ADAPTERS), asked)


MEDIA = {"pictures": pictures, "audio": audio}


@pytest.fixture(scope="module", params=MEDIA)
def medium(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Medium:
    return MEDIA[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None, enable_lora=True)


@pytest.fixture(scope="module")
def rigs(medium: Medium, found: Registry) -> Iterator[Rigs]:
    def load_adapters(rig: Rig) -> None:
        for name, folder in medium.kit.folders.items():
            rig.engine.load_adapter(name, folder)

    with rigs_of(medium.kit.model.folder, found, load_adapters) as made:
        yield made


@pytest.fixture(scope="module")
def prompts(medium: Medium, found: Registry, rigs: Rigs) -> list[Prompt]:
    """The one looked at, and others that have media too, one of them the same."""
    info = rigs(PLAIN.settings).engine.info
    return [medium.kit.model.prompt(found, info, text, *items) for text, items in medium.asked]


@pytest.fixture(scope="module")
def others(prompts: list[Prompt]) -> Others:
    return beside(prompts, ADAPTERS)


# each in every other way, and every way with every other feature
ASKED = [
    pytest.param(name, feature, SETTINGS[number % 2 :: 2], id=f"{feature.name} on {name}")
    for name, features in FEATURES.items()
    for number, feature in enumerate(features)
]


@pytest.mark.parametrize(("medium", "feature", "ways"), ASKED, indirect=["medium"])
def test_a_feature_holds_on_media_in_several_ways_of_running(
    rigs: Rigs, prompts: list[Prompt], others: Others, feature: Feature, ways: tuple[Setting, ...]
) -> None:
    check_in_ways(rigs, prompts[0], feature, ways, others)


BEAMS = [
    pytest.param(name, way, adapters, id=f"{name}, {way.name}, {len(adapters)} adapters")
    for name in MEDIA
    for way in SETTINGS
    for adapters in [(), ("all",), *([ADAPTERS] if name == "pictures" else [])]
]


@pytest.mark.parametrize(("medium", "way", "adapters"), BEAMS, indirect=["medium"])
def test_beam_search_on_media_gives_the_same_in_every_way_of_running(
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


def test_the_adapter_and_the_media_change_the_answer(rigs: Rigs, prompts: list[Prompt]) -> None:
    adapter = next(feature for feature in PICTURE_FEATURES if feature.name == "adapter")
    rig = rigs(PLAIN.settings)
    answers = [ask(rig, prompts[0], features, ())[0].token_ids for features in ((), (adapter,))]
    answers.append(ask(rig, prompts[0].token_ids, (), ())[0].token_ids)
    assert len({tuple(answer) for answer in answers}) == 3

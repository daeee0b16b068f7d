"""What a request may ask for works on a prompt with pictures or audio in it, in any way of running, beside others.

The answer in the plainest engine, alone, is what every other way must give. On audio not every feature again: those
that touch where media lie, what is kept of them, and which requests share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
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
from quire.types import Prompt

ADAPTERS = ("all", "tower")
Asked = Sequence[tuple[str, Sequence[Any]]]
ON_AUDIO = ("n", "logprobs", "prompt logprobs", "choice", "salt", "adapter", "stream")
FEATURES = {
    "pictures": PICTURE_FEATURES,
    "audio": tuple(feature for feature in PICTURE_FEATURES if feature.name in ON_AUDIO),
}


@dataclass(frozen=True)
class Medium:
    """Engines with adapters by their settings; prompts, one that is looked at and others that have media too, one of
    them the same; and requests beside it.
    """

    rigs: Rigs
    prompts: Sequence[Prompt]
    others: Others


def pictures(folder: Path) -> tuple[Any, Asked]:
    found = {name: llava_adapted.ADAPTERS[name] for name in ADAPTERS}
    kit = llava_adapted.Kit(folder, Model(folder / "base", CASES["1.5"]), found)
    first, second, third = map(picture, (1, 2, 3))
    return kit, [("a <image> or <image>?", [first, second]), ("<image> b", [first]), ("c <image>", [third])]


def audio(folder: Path) -> tuple[Any, Asked]:
    first, second, third = sound(1, 0.6), sound(2, 0.33), sound(3, 0.7)
    asked = [("a <|AUDIO|> or <|AUDIO|>?", [first, second]), ("<|AUDIO|> b", [first]), ("c <|AUDIO|>", [third])]
    return qwen_audio_adapted.Kit(folder, ADAPTERS), asked


KITS = {"pictures": pictures, "audio": audio}
"""A tiny model with adapters, and texts with their media."""


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Medium]]:
    """By name, made when first needed."""
    found = registry.load(None, enable_lora=True)
    with ExitStack() as stack:

        @cache
        def medium(name: str) -> Medium:
            kit, asked = KITS[name](tmp_path_factory.mktemp(name))

            def load_adapters(rig: Rig) -> None:
                for adapter, folder in kit.folders.items():
                    rig.engine.load_adapter(adapter, folder)

            rigs = stack.enter_context(rigs_of(kit.model.folder, found, load_adapters))
            info = rigs(PLAIN.settings).engine.info
            prompts = [kit.model.prompt(found, info, text, *items) for text, items in asked]
            return Medium(rigs, prompts, beside(prompts, ADAPTERS))

        yield medium


# each in every other way, and every way with every other feature
ASKED = [
    pytest.param(name, feature, SETTINGS[number % 2 :: 2], id=f"{feature.name} on {name}")
    for name, features in FEATURES.items()
    for number, feature in enumerate(features)
]


@pytest.mark.parametrize(("name", "feature", "ways"), ASKED)
def test_a_feature_holds_on_media_in_several_ways_of_running(
    media: Callable[[str], Medium], name: str, feature: Feature, ways: tuple[Setting, ...]
) -> None:
    medium = media(name)
    check_in_ways(medium.rigs, medium.prompts[0], feature, ways, medium.others)


BEAMS = [
    pytest.param(name, way, adapters, id=f"{name}, {way.name}, {len(adapters)} adapters")
    for name in KITS
    for way in SETTINGS
    for adapters in [(), ("all",), *([ADAPTERS] if name == "pictures" else [])]
]


@pytest.mark.parametrize(("name", "way", "adapters"), BEAMS)
def test_beam_search_on_media_gives_the_same_in_every_way_of_running(
    media: Callable[[str], Medium], name: str, way: Setting, adapters: tuple[str, ...]
) -> None:
    medium, use = media(name), uses(*adapters)
    plain = beams(medium.rigs(PLAIN.settings), medium.prompts[0], PLAIN, adapters=use)
    assert len(plain) == 3
    assert same(beams(medium.rigs(way.settings), medium.prompts[0], way, medium.others, adapters=use), plain)


@pytest.mark.parametrize("name", KITS)
def test_the_ways_that_should_preempt_do(media: Callable[[str], Medium], name: str) -> None:
    medium = media(name)
    for way in SETTINGS:
        if way.name in ("recompute", "swap"):
            ask(medium.rigs(way.settings), medium.prompts[0], PICTURE_FEATURES[:1], (way,), medium.others)
            stats = medium.rigs(way.settings).engine.stats()
            assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0, way.name


@pytest.mark.parametrize("name", KITS)
def test_the_adapter_and_the_media_change_the_answer(media: Callable[[str], Medium], name: str) -> None:
    medium, adapter = media(name), next(feature for feature in PICTURE_FEATURES if feature.name == "adapter")
    rig, prompt = medium.rigs(PLAIN.settings), medium.prompts[0]
    answers = [ask(rig, prompt, features, ())[0].token_ids for features in ((), (adapter,))]
    answers.append(ask(rig, prompt.token_ids, (), ())[0].token_ids)
    assert len({tuple(answer) for answer in answers}) == 3

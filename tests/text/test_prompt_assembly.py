"""Media among words that their mapper brings: a list of points becomes "[", each few of them between slashes, "]"."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import greedy, rig_of
from points_rig import PLACE, MapsPoints, PointTower, cloud, points_folder, points_registry, prompt_of
from torch import Tensor

from quire.errors import BadRequest, PluginFailed
from quire.records import InputMapper, MappedMedia, MappedText, Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire_models.loading import checkpoint
from quire_testing import check_input_mapper

AT = "<|user|>"
"""A token that stands for points among the words."""


class WordsPoints(MapsPoints):
    """Points two by two; one point alone has no words."""

    def map(self, item: Tensor) -> MappedMedia | MappedText:  # type: ignore[override]
        if len(item) == 1:
            return super().map(item)
        few = [super(WordsPoints, self).map(some) for some in item.split(2)]
        return MappedText("[" + "/".join([AT] * len(few)) + "]", AT, few)


class WordsTooMany(MapsPoints):
    def map(self, item: Tensor) -> MappedMedia | MappedText:  # type: ignore[override]
        return MappedText(AT * len(item), AT, [super().map(item)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return points_folder(tmp_path_factory.mktemp("points"))


@pytest.fixture(scope="module", params=["<points>", "<|system|>"], ids=["a marker of several tokens", "of one"])
def found(request: pytest.FixtureRequest) -> Registry:
    return points_registry(build=WordsPoints, marker=request.param)


@pytest.fixture(scope="module")
def inputs(folder: Path, found: Registry) -> Iterator[MultimodalProcessor]:
    with rig_of(folder, found) as rig:
        yield MultimodalProcessor(found, rig.engine.info, Tokenizer.load(folder))


def places(prompt: Any) -> list[tuple[int, int]]:
    return [(medium.start, medium.length) for medium in prompt.media]


def test_words_take_the_place_of_the_marker_and_media_of_the_mark(inputs: MultimodalProcessor, folder: Path) -> None:
    marker = inputs.markers["points"]
    prompt = prompt_of(inputs, folder, f"a{marker}b{marker}{marker}", cloud(1, 3), cloud(2, 1), cloud(3, 2))
    expected = [*b"a[", PLACE, PLACE, *b"/", PLACE, *b"]b", PLACE, *b"[", PLACE, PLACE, *b"]"]
    assert list(prompt.token_ids) == expected
    assert places(prompt) == [(2, 2), (5, 1), (8, 1), (10, 2)]
    torch.testing.assert_close(torch.cat([m.tensors["points"] for m in prompt.media[:2]]), cloud(1, 3))
    torch.testing.assert_close(prompt.media[3].tensors["points"], cloud(3, 2))


def test_a_prompt_of_ids_gets_them_as_well(inputs: MultimodalProcessor, folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    ids = [*b"a", *tokenizer.encode(inputs.markers["points"], add_special_tokens=False), *b"b"]
    value = {"prompt_token_ids": ids, "multi_modal_data": {"points": cloud(1, 3)}}
    prompt = to_prompt(value, tokenizer, multimodal=inputs)
    assert list(prompt.token_ids) == [*b"a[", PLACE, PLACE, *b"/", PLACE, *b"]b"]


def test_a_mark_that_stands_in_the_prompt_itself_is_refused(inputs: MultimodalProcessor, folder: Path) -> None:
    marker = inputs.markers["points"]
    with pytest.raises(BadRequest, match="contains text that is reserved for the inside of points"):
        prompt_of(inputs, folder, f"{AT}{marker}", cloud(1, 3))


def test_the_answer_is_that_to_the_same_ids_and_media(
    inputs: MultimodalProcessor, folder: Path, found: Registry
) -> None:
    marker = inputs.markers["points"]
    plain = points_registry()
    with rig_of(folder, plain) as rig:
        whole = MultimodalProcessor(plain, rig.engine.info, Tokenizer.load(folder))
        points = cloud(1, 3)
        prompts = [
            prompt_of(inputs, folder, f"a{marker}", points),
            prompt_of(whole, folder, "a[<points>/<points>]", points[:2], points[2:]),
        ]
        assert prompts[0].token_ids == prompts[1].token_ids
        ids = [rig.add(prompt, greedy(8, ignore_eos=True)) for prompt in prompts]
        answers = rig.drain()
    assert answers[ids[0], 0].token_ids == answers[ids[1], 0].token_ids


def test_a_mapper_whose_words_do_not_fit_its_media_fails(folder: Path) -> None:
    found = points_registry(build=WordsTooMany)
    with rig_of(folder, found) as rig:
        inputs = MultimodalProcessor(found, rig.engine.info, Tokenizer.load(folder))
        with pytest.raises(PluginFailed, match=r"'made' must word points with '<\|user\|>' once for each of 1 media"):
            prompt_of(inputs, folder, "<points>", cloud(1, 2))


def test_the_check_of_mappers_knows_words(folder: Path) -> None:
    config, found = checkpoint.read_config(folder), points_registry(lambda c: PointTower(c.point_size))
    architecture = found.by_hook("quire_architectures")["PointsForCausalLM"]

    def record(build: Any) -> InputMapper:
        return InputMapper("made/points", architecture.name, "points", build)

    check_input_mapper(record(WordsPoints), architecture, config, [cloud(1, 3), cloud(2, 1), cloud(3, 4)])
    with pytest.raises(AssertionError, match="must occur in the text once for each"):
        check_input_mapper(record(WordsTooMany), architecture, config, [cloud(1, 2)])

"""Models that see against transformers and peft, on tiny random models: one engine for each family."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from llava_adapted import uses
from llava_rig import our_logits
from picture_families import families
from picture_model import PictureModel

from quire.hooks import registry
from quire.records import Registry
from quire.types import Prompt
from quire_models import TowerCall
from quire_models.towers.tower import SupportsDummyInput

FAMILIES = families()


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None, enable_lora=True)


@pytest.fixture(scope="module", params=list(FAMILIES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> PictureModel:
    return PictureModel(tmp_path_factory.mktemp(request.param), FAMILIES[request.param])


@pytest.fixture(scope="module")
def rig(model: PictureModel, found: Registry) -> Iterator[Rig]:
    with rig_of(model.folder, found, max_num_batched_tokens=33, num_pages=400) as made:
        yield made


@pytest.fixture(scope="module")
def prompts(model: PictureModel, found: Registry, rig: Rig) -> list[Prompt]:
    return [model.prompt(found, rig.engine.info, text, *pictures) for text, pictures in model.prompts]


def test_ids_and_pixels_are_those_of_the_processor(model: PictureModel, prompts: list[Prompt]) -> None:
    for prompt, (text, pictures) in zip(prompts, model.prompts, strict=True):
        assert list(prompt.token_ids) == model.expected_ids(text, *pictures)
    for name, wanted in model.family.tensors(model.processor, model.prompts[1][1][0]).items():
        np.testing.assert_array_equal(prompts[1].media[0].tensors[name].numpy(), np.asarray(wanted))


def test_logits_are_those_of_transformers(model: PictureModel, rig: Rig, prompts: list[Prompt]) -> None:
    for prompt, (_, pictures) in zip(prompts, model.prompts, strict=True):
        ours = our_logits(rig.engine.loaded, prompt)
        torch.testing.assert_close(ours, model.logits(prompt, *pictures), atol=1e-4, rtol=0)


def test_tokens_are_those_of_transformers_and_peft_in_mixed_batches(
    model: PictureModel, rig: Rig, prompts: list[Prompt]
) -> None:
    rig.engine.load_adapter("text", model.kit.folders["text"])
    asked = [(i, adapter) for i in range(len(prompts)) for adapter in ("", "text")][1:]
    wanted = [model.greedy(prompts[i], *model.prompts[i][1], adapter=adapter) for i, adapter in asked]
    for _ in range(2):  # the second time pages are found
        ids = [rig.add(prompts[i], greedy(16, ignore_eos=True), adapters=uses(name)) for i, name in asked]
        answers = rig.drain()
        assert [answers[request_id, 0].token_ids for request_id in ids] == wanted
    assert rig.engine.stats().num_cached_tokens_total > 0


def test_preemption_and_short_steps_change_nothing(model: PictureModel, found: Registry, prompts: list[Prompt]) -> None:
    wanted = [model.greedy(prompt, *pictures) for prompt, (_, pictures) in zip(prompts, model.prompts, strict=True)]
    order = [3, 0, 1, 2]
    pages = sum(-(-len(prompts[i].token_ids) // 4) for i in order[:2]) + 6  # their answers take four each
    with rig_of(model.folder, found, max_num_batched_tokens=17, num_pages=pages) as rig:
        ids = [rig.add(prompt, greedy(16, ignore_eos=True)) for prompt in (prompts[i] for i in order)]
        answers = rig.drain()
        assert [answers[request_id, 0].token_ids for request_id in ids] == [wanted[i] for i in order]
        # where one prompt fills nearly all pages, the others wait for it
        assert rig.engine.stats().num_preemptions_recompute_total > 0 or len(prompts[3].token_ids) > 200


def test_the_example_that_memory_is_measured_with_is_what_the_tower_takes(rig: Rig) -> None:
    tower = rig.engine.loaded.module.tower
    assert isinstance(tower, SupportsDummyInput)
    item, num_rows = tower.dummy_input()
    assert len(tower([item], TowerCall("cpu"))[0]) == num_rows  # type: ignore[operator]

"""Prompts of PaliGemma: what stands around the text, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_rig import Rig, greedy, rig_of
from family_checks import plugins
from llava_rig import picture
from picture_families import families
from picture_model import FIRST_TOKEN, PictureModel

from quire.errors import BadRequest
from quire.text.inputs.inputs import PromptInput, to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.types import Prompt

IMAGE, BEGIN = [FIRST_TOKEN] * 16, FIRST_TOKEN + 1
PICTURE = {"image": [picture(1)]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PictureModel:
    return PictureModel(tmp_path_factory.mktemp("paligemma"), families()["paligemma"])


@pytest.fixture(scope="module")
def rig(model: PictureModel) -> Iterator[Rig]:
    with rig_of(model.folder, plugins(), max_num_batched_tokens=40) as made:
        yield made


def prompt_of(model: PictureModel, rig: Rig, value: PromptInput) -> Prompt:
    multimodal = MultimodalProcessor(plugins(), rig.engine.info, model.tokenizer)
    return to_prompt(value, model.tokenizer, multimodal=multimodal)


def test_the_text_begins_and_ends_as_in_training(model: PictureModel, rig: Rig) -> None:
    asked = prompt_of(model, rig, {"prompt": "<image>cap", "multi_modal_data": PICTURE})
    assert list(asked.token_ids) == [*IMAGE, BEGIN, *b"cap\n"]
    assert (asked.media[0].start, asked.media[0].length) == (0, len(asked.token_ids))
    assert asked.media[0].rows_at is not None
    assert asked.media[0].rows_at.tolist() == list(range(16))


def test_ids_that_are_complete_are_not_changed(model: PictureModel, rig: Rig) -> None:
    ids = [FIRST_TOKEN, BEGIN, *b"cap"]
    asked = prompt_of(model, rig, {"prompt_token_ids": ids, "multi_modal_data": PICTURE})
    assert list(asked.token_ids) == [*IMAGE, BEGIN, *b"cap"]


def test_keys_and_values_belong_to_the_whole_prompt(model: PictureModel, rig: Rig) -> None:
    one, other = (
        prompt_of(model, rig, {"prompt": f"<image>cap{end}", "multi_modal_data": PICTURE}) for end in ("s", "e")
    )
    assert one.media[0].digest != other.media[0].digest


@pytest.mark.parametrize("value", ["cap", {"prompt": "cap", "multi_modal_data": {"image": []}}])
def test_a_prompt_without_an_image_is_refused(model: PictureModel, rig: Rig, value: PromptInput) -> None:
    with pytest.raises(BadRequest, match="takes image with each prompt; it has none"):
        prompt_of(model, rig, value)


def test_a_prompt_that_no_step_can_hold_is_refused(model: PictureModel, rig: Rig) -> None:
    asked = prompt_of(model, rig, {"prompt": f"<image>{'long ' * 8}", "multi_modal_data": PICTURE})
    with pytest.raises(BadRequest, match="which must be computed in one step"):
        rig.add(asked, greedy(4))

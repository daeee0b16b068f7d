"""Models that hear against transformers and peft, on tiny random models."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_rig import greedy, rig_of
from family_checks import plugins
from media_checks import check_media_family
from phi4_model import Phi4Model
from sound_families import families
from sound_model import SoundModel

from quire.errors import BadRequest
from quire.hooks import registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor

FAMILIES = families()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_that_hears_gives_what_transformers_gives(name: str, tmp_path: Path) -> None:
    check_media_family(SoundModel(tmp_path, FAMILIES[name]), plugins())


def test_a_model_that_sees_and_hears_gives_what_transformers_gives(tmp_path: Path) -> None:
    check_media_family(Phi4Model(tmp_path), plugins())


def test_without_a_runtime_for_it_sounds_are_refused_that_need_the_adapter_of_the_folder(tmp_path: Path) -> None:
    model, found = SoundModel(tmp_path, FAMILIES["granite-speech"]), registry.load(None)
    with rig_of(model.folder, found) as rig:
        question, media = model.questions[1], MultimodalProcessor(found, rig.engine.info, model.tokenizer)
        value = {"prompt": question.text, "multi_modal_data": dict(question.media)}
        with pytest.raises(BadRequest, match=r"needs an adapter of its folder for prompts with audio: .*--enable-lora"):
            rig.add(to_prompt(value, model.tokenizer, multimodal=media))
        assert rig.tokens([[1, 2, 3]], greedy(4, ignore_eos=True))

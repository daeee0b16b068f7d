"""Models that hear against transformers and peft, on tiny random models."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_rig import Rig, greedy, rig_of
from family_checks import plugins
from media_checks import check_media_family
from phi4_model import Phi4Model
from sound_families import families
from sound_model import SoundModel

from quire.errors import BadRequest, ConfigError
from quire.hooks import registry
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.types import Prompt

FAMILIES = families()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_that_hears_gives_what_transformers_gives(name: str, tmp_path: Path) -> None:
    check_media_family(SoundModel(tmp_path, FAMILIES[name]), plugins())


def test_a_model_that_sees_and_hears_gives_what_transformers_gives(tmp_path: Path) -> None:
    check_media_family(Phi4Model(tmp_path), plugins())


def _prompt(model: SoundModel, found: Registry, rig: Rig) -> Prompt:
    """The first question with a sound."""
    question, media = model.questions[1], MultimodalProcessor(found, rig.engine.info, model.tokenizer)
    value = {"prompt": question.text, "multi_modal_data": dict(question.media)}
    return to_prompt(value, model.tokenizer, multimodal=media)  # type: ignore[arg-type]


def test_a_setting_takes_the_place_of_the_adapter_of_the_folder(tmp_path: Path) -> None:
    model = SoundModel(tmp_path, FAMILIES["granite-speech"])
    settings = {**model.settings, "default_mm_loras": {"audio": str(model.adapter)}}
    with rig_of(model.folder, plugins(), **settings) as rig:
        prompt = _prompt(model, plugins(), rig)
        request_id = rig.add(prompt, greedy(8, ignore_eos=True))
        answer = rig.drain()[request_id, 0].token_ids
        assert rig.engine.adapters.infos() == []
    logits = model.logits(prompt, answer, model.questions[1], adapted=True)[-9:-1]
    assert logits.argmax(-1).tolist() == answer


def test_without_a_runtime_for_it_sounds_are_refused_that_need_the_adapter_of_the_folder(tmp_path: Path) -> None:
    model, found = SoundModel(tmp_path, FAMILIES["granite-speech"]), registry.load(None)
    with rig_of(model.folder, found) as rig:
        with pytest.raises(BadRequest, match=r"needs an adapter of its folder for prompts with audio: .*--enable-lora"):
            rig.add(_prompt(model, found, rig))
        assert rig.tokens([[1, 2, 3]], greedy(4, ignore_eos=True))
    wrong = {"default_mm_loras": {"video": "folder"}}
    with (
        pytest.raises(ConfigError, match=r"--default-mm-loras must map modalities of the model \(audio\) to folders"),
        rig_of(model.folder, found, **wrong),
    ):
        pass

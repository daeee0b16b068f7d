"""Pictures through the fallback: transformers' processor, the model's own rows and positions, in the engine."""

from __future__ import annotations

import json
from pathlib import Path

import gemma3_rig
import pytest
import torch
from engine_rig import greedy, rig_of
from llava_rig import CROP, IMAGE, Case, Model, our_logits, picture
from qwen_vl_rig import ASKED, PICTURE_ID, TWO, expected, tiny

from quire.engine.loading.load import LoadedModel, load_model
from quire.errors import CheckpointError
from quire.hooks import registry
from quire.records import Registry
from quire.settings.model_config import ModelConfig
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer

VIP = Case("VipLlavaForConditionalGeneration", "CLIPImageProcessorPil", {"vision_feature_layers": [-2, 0]}, CROP)
"""An architecture without a plugin."""

PROCESSOR = {
    "processor_class": "LlavaProcessor",
    "patch_size": 7,
    "vision_feature_select_strategy": "default",
    "num_additional_image_tokens": 1,
}


@pytest.fixture(scope="module")
def plugins() -> Registry:
    return registry.load(None, enable_lora=True)


def with_token(folder: Path, number: int, name: str) -> Path:
    """A folder whose tokenizer has this token, behind unused ones."""
    from tokenizers import AddedToken, Tokenizer

    file = str(folder / "tokenizer.json")
    made = Tokenizer.from_file(file)
    names = [*(f"<unused {i}>" for i in range(made.get_vocab_size(), number)), name]
    made.add_special_tokens([AddedToken(each, special=True, normalized=False) for each in names])
    assert made.token_to_id(name) == number
    made.save(file)
    return folder


@pytest.fixture(scope="module")
def vip(tmp_path_factory: pytest.TempPathFactory) -> Model:
    made = Model(tmp_path_factory.mktemp("pictures") / "vip", VIP)
    (with_token(made.folder, IMAGE, "<image>") / "processor_config.json").write_text(json.dumps(PROCESSOR))
    return made


def loaded_by_transformers(folder: Path, plugins: Registry) -> LoadedModel:
    config = ModelConfig(model=str(folder), model_impl="transformers", dtype="float32", device="cpu")
    return load_model(config, plugins)


def test_logits_are_those_of_transformers(vip: Model, plugins: Registry) -> None:
    loaded = loaded_by_transformers(vip.folder, plugins)
    assert (loaded.info.modalities, loaded.info.fallback) == (("image",), "transformers")
    pictures = [picture(1), picture(2, 30, 44)]
    prompt = vip.prompt(plugins, loaded.info, "a <image> beside <image>?", *pictures)
    assert [medium.num_rows for medium in prompt.media] == [16, 16]
    torch.testing.assert_close(our_logits(loaded, prompt), vip.logits(prompt, *pictures), atol=1e-4, rtol=0)


@pytest.mark.parametrize("chunk", [7, 100])
def test_tokens_are_those_of_transformers_in_chunks_and_beside_texts(chunk: int, vip: Model, plugins: Registry) -> None:
    with rig_of(vip.folder, plugins, model_impl="transformers", max_num_batched_tokens=chunk) as rig:
        shown = picture(3)
        prompt = vip.prompt(plugins, rig.engine.loaded.info, "What is <image> here?", shown)
        text = vip.prompt(plugins, rig.engine.loaded.info, "only a text, and nothing else")
        ids = [rig.add(each, greedy(8, ignore_eos=True)) for each in (prompt, text, prompt)]
        answers = rig.drain()
        wanted = [vip.greedy(prompt, shown, count=8), vip.greedy(text, count=8)]
        assert [answers[each, 0].token_ids for each in ids] == [*wanted, wanted[0]]


def test_positions_are_those_of_the_model(tmp_path: Path, plugins: Registry) -> None:
    made = tiny(TWO, tmp_path)
    loaded = loaded_by_transformers(with_token(made.folder, PICTURE_ID, "<|image_pad|>"), plugins)
    assert loaded.info.position_axes == 3
    tokenizer = Tokenizer.load(made.folder)
    for name in ("one", "several"):
        asked = ASKED[name]
        value = {"prompt": asked.text, "multi_modal_data": {"image": list(asked.pictures)}}
        prompt = to_prompt(value, tokenizer, multimodal=MultimodalProcessor(plugins, loaded.info, tokenizer))
        wanted = expected(made, asked, 1)[1]
        torch.testing.assert_close(our_logits(loaded, prompt).log_softmax(-1), wanted, atol=1e-4, rtol=0)


def test_a_model_that_masks_pictures_in_its_own_way_is_refused(tmp_path: Path, plugins: Registry) -> None:
    folder = gemma3_rig.Model(tmp_path).folder
    settings = {"processor_class": "Gemma3Processor", "image_seq_length": 16}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"its pictures cannot be computed: .* masks attention in another way"):
        loaded_by_transformers(folder, plugins)

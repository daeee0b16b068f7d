"""Voxtral against transformers and peft, on a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
from engine_rig import Rig, greedy, rig_of
from llava_adapted import Kit, uses
from llava_rig import TEXT, our_logits
from qwen_audio_rig import RATE, sound
from torch import Tensor
from transformers import WhisperFeatureExtractor

from quire.errors import CheckpointError, Unprocessable
from quire.hooks import registry
from quire.media.audio import Audio
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt
from quire_models import TowerCall
from quire_testing.tiny import byte_tokenizer, reference_model, save

AUDIO, SECONDS = 260, 1
FRAMES = 100 * SECONDS
ROWS = FRAMES // 2 // 2  # two frames a token, two tokens an embedding

HEARING = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_mel_bins": 16,
    "max_source_positions": FRAMES // 2,
}
LISTENING = [
    ("no sound, but a text", []),
    ("[AUDIO] is heard", [sound(1, 0.6)]),
    ("at the end [AUDIO]", [sound(2, 2.3)]),  # three windows
    ("this [AUDIO] and [AUDIO].", [sound(3, 1.0), sound(1, 0.6)]),
]


class Model:
    """A tiny model in a folder, with a LoRA adapter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reference = reference_model(
            "VoxtralForConditionalGeneration",
            text_config={**TEXT, "model_type": "llama"},
            audio_config=HEARING,
            audio_token_id=AUDIO,
        )
        save(self.reference, folder)
        byte_tokenizer(folder)
        made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        made.add_special_tokens([tokenizers.AddedToken("[AUDIO]", special=True, normalized=False)])
        made.save(str(folder / "tokenizer.json"))
        self.extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=SECONDS)
        self.extractor.save_pretrained(folder)
        reading = r".*language_model.*\.(q_proj|v_proj|o_proj|down_proj)"
        self.kit = Kit(folder, self, {"text": {"r": 4, "lora_alpha": 8, "target_modules": reading}})

    def prompt(self, found: Registry, info: ModelInfo, text: str, *sounds: Audio) -> Prompt:
        tokenizer = Tokenizer.load(self.folder)
        value = {"prompt": text, "multi_modal_data": {"audio": list(sounds)}} if sounds else text
        return to_prompt(value, tokenizer, multimodal=MultimodalProcessor(found, info, tokenizer))

    def inputs(self, prompt: Prompt, *sounds: Audio) -> dict[str, Tensor]:
        """What transformers' processor makes: windows of the padded audio."""
        found: dict[str, Any] = {"input_ids": torch.tensor([prompt.token_ids])}
        windows = []
        for one in sounds:
            made = self.extractor(
                one.resample(RATE),
                sampling_rate=RATE,
                padding=True,
                truncation=False,
                pad_to_multiple_of=SECONDS * RATE,
                return_tensors="pt",
            )["input_features"]
            windows.append(made.reshape(16, -1, FRAMES).transpose(0, 1))
        return {**found, "input_features": torch.cat(windows)} if sounds else found

    @torch.inference_mode()
    def greedy(self, prompt: Prompt, *sounds: Audio, adapter: str = "") -> list[int]:
        made = self.kit.oracle(adapter).generate(
            **self.inputs(prompt, *sounds), do_sample=False, max_new_tokens=16, eos_token_id=None, pad_token_id=0
        )
        tokens: list[int] = made[0, len(prompt.token_ids) :].tolist()
        return tokens


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None, enable_lora=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("voxtral"))


@pytest.fixture(scope="module")
def rig(model: Model, found: Registry) -> Iterator[Rig]:
    with rig_of(model.folder, found, max_num_batched_tokens=11, num_pages=400) as made:
        yield made


def test_logits_are_those_of_transformers(model: Model, found: Registry, rig: Rig) -> None:
    for text, sounds in LISTENING:
        prompt = model.prompt(found, rig.engine.info, text, *sounds)
        windows = [len(one.resample(RATE)) // RATE + bool(len(one.resample(RATE)) % RATE) for one in sounds]
        assert prompt.token_ids.count(AUDIO) == ROWS * sum(windows)
        wanted = model.reference(**model.inputs(prompt, *sounds)).logits[0].detach()
        torch.testing.assert_close(our_logits(rig.engine.loaded, prompt), wanted, atol=1e-4, rtol=0)


def test_tokens_are_those_of_transformers_and_peft_in_mixed_batches(model: Model, found: Registry, rig: Rig) -> None:
    rig.engine.load_adapter("text", model.kit.folders["text"])
    prompts = [model.prompt(found, rig.engine.info, text, *sounds) for text, sounds in LISTENING]
    asked = [(i, adapter) for i in range(len(prompts)) for adapter in ("", "text")]
    wanted = [model.greedy(prompts[i], *LISTENING[i][1], adapter=adapter) for i, adapter in asked]
    for _ in range(2):  # the second time pages are found
        ids = [rig.add(prompts[i], greedy(16, ignore_eos=True), adapters=uses(name)) for i, name in asked]
        answers = rig.drain()
        assert [answers[request_id, 0].token_ids for request_id in ids] == wanted
    assert rig.engine.stats().num_cached_tokens_total > 0


def test_the_example_that_memory_is_measured_with_is_what_the_tower_takes(rig: Rig) -> None:
    tower: Any = rig.engine.loaded.module.tower
    item, num_rows = tower.dummy_input()
    assert len(tower([item], TowerCall("cpu"))[0]) == num_rows == ROWS


def test_audio_without_samples_and_widths_that_do_not_divide_are_refused(
    model: Model, found: Registry, rig: Rig, tmp_path: Path
) -> None:
    with pytest.raises(Unprocessable, match="The audio is empty"):
        model.prompt(found, rig.engine.info, "[AUDIO]", Audio(samples=np.zeros(0, np.float32), rate=RATE))
    for file in model.folder.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    config = (tmp_path / "config.json").read_text()
    changed = config.replace('"max_source_positions": 50', '"max_source_positions": 51')
    (tmp_path / "config.json").write_text(changed)
    with pytest.raises(CheckpointError, match="`max_source_positions` 51 a multiple of their ratio"), rig_of(tmp_path):
        pass

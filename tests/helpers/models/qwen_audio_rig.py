"""A tiny random Qwen2-Audio that hears one second, and what transformers makes of prompts with audio in them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire.media.audio import Audio
from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt
from quire_testing.tiny import END_ID, VOCAB_SIZE, byte_tokenizer, reference_model, save

NAME = "Qwen2AudioForConditionalGeneration"
RATE, SECONDS = 16_000, 1
MARKERS = ("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
AUDIO_ID = 260
"""The first one's; the others follow."""

TEXT: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": END_ID,
    "pad_token_id": END_ID,
}
HEARING: dict[str, Any] = {
    "model_type": "qwen2_audio_encoder",
    "num_mel_bins": 16,
    "d_model": 48,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 80,
    "max_source_positions": 50 * SECONDS,
}
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
"""Part by part, as the model's own."""


def sound(seed: int, seconds: float, rate: int = RATE) -> Audio:
    """A tone that rises, and noise."""
    rng = np.random.default_rng(seed)
    at = np.arange(round(seconds * rate)) / rate
    tone = np.sin(2 * np.pi * rng.uniform(100, 2000) * at * (1 + at))
    return Audio(samples=(0.3 * tone + 0.05 * rng.standard_normal(len(at))).astype(np.float32), rate=rate)


class Model:
    """A tiny model in a folder."""

    def __init__(self, folder: Path, **text: Any) -> None:
        from transformers import PreTrainedTokenizerFast, Qwen2AudioProcessor, WhisperFeatureExtractor

        self.folder = folder
        self.reference = reference_model(
            NAME, text_config={**TEXT, **text}, audio_config=HEARING, audio_token_index=AUDIO_ID
        )
        save(self.reference, folder)
        byte_tokenizer(folder, CHAT_TEMPLATE)
        tokens = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokens.add_special_tokens([tokenizers.AddedToken(name, special=True, normalized=False) for name in MARKERS])
        tokens.save(str(folder / "tokenizer.json"))
        extractor = WhisperFeatureExtractor(feature_size=HEARING["num_mel_bins"], chunk_length=SECONDS)
        extractor.save_pretrained(folder)
        self._processor = Qwen2AudioProcessor(extractor, PreTrainedTokenizerFast.from_pretrained(folder))

    def value(self, text: str, *sounds: Audio) -> Any:
        """As `LLM.generate` takes it."""
        return {"prompt": text, "multi_modal_data": {"audio": list(sounds)}} if sounds else text

    def prompt(self, found: Registry, info: ModelInfo, text: str, *sounds: Audio) -> Prompt:
        tokenizer = Tokenizer.load(self.folder)
        return to_prompt(self.value(text, *sounds), tokenizer, multimodal=MultimodalProcessor(found, info, tokenizer))

    def inputs(self, text: str, *sounds: Audio) -> dict[str, Tensor]:
        """As the model of transformers takes it, by its own processor."""
        samples: list[NDArray[np.float32]] = [one.resample(RATE) for one in sounds]
        more = {"audio": samples, "sampling_rate": RATE} if sounds else {}
        return dict(self._processor(text=text, return_tensors="pt", **more))

    @torch.inference_mode()
    def logits(self, text: str, *sounds: Audio, model: Any = None) -> Tensor:
        """[tokens, vocab] of a prompt, by transformers."""
        logits: Tensor = (model or self.reference)(**self.inputs(text, *sounds)).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, text: str, *sounds: Audio, count: int = 32, model: Any = None) -> list[int]:
        inputs = self.inputs(text, *sounds)
        made = (model or self.reference).generate(
            **inputs, do_sample=False, max_new_tokens=count, eos_token_id=None, pad_token_id=0
        )
        tokens: list[int] = made[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens


PROMPTS: Sequence[tuple[str, list[Audio]]] = [
    ("no sound, but a text of some length", []),
    ("<|AUDIO|>", [sound(1, 0.5)]),
    ("what is at the end? <|AUDIO|>", [sound(2, SECONDS)]),
    ("a <|audio_bos|><|AUDIO|><|audio_eos|> in the middle", [sound(3, 0.131)]),
    ("<|AUDIO|><|AUDIO|>side by side", [sound(4, 0.99), sound(5, 0.72, 8000)]),
    ("this <|AUDIO|> and <|AUDIO|>, again <|AUDIO|>.", [sound(6, 0.03), sound(1, 0.5), sound(7, 0.805)]),
]
"""None, one, several; of different lengths; at the start, in the middle and at the end."""

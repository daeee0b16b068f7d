"""Tiny random Gemma 3 models that see, and what transformers makes of prompts with pictures in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from llava_rig import picture, siglip_config
from PIL import Image
from torch import Tensor

from quire.records import Registry
from quire.text.inputs.inputs import to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt
from quire_testing.tiny import CHAT_TEMPLATE, reference_model, save

SPECIAL = ("<|end|>", "<start_of_image>", "<end_of_image>", "<image_soft_token>")
END, BEGIN, STOP, SOFT = range(258, 262)
"""Ids 0 … 255 are the bytes, 256 and 257 two and three ends of lines."""

TILE, TOKENS = 56, 16
"""Pixels of a side, and rows of a picture."""

TEXT: dict[str, Any] = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": END,
    "pad_token_id": END,
}

CASES: dict[str, dict[str, Any]] = {
    "narrow": {"window": 9},  # less than a picture
    "wide": {"window": 600},  # more than a prompt
    "tied": {"window": 20, "tied": True},
}


def tokenizer_of_lines(folder: Path) -> None:
    """Bytes, but ends of lines are tokens together: what stands before a picture matters to how it is cut up."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from quire_testing.tiny import _byte_characters

    vocab = {character: byte for byte, character in enumerate(_byte_characters())}
    line = _byte_characters()[10]
    vocab |= {2 * line: 256, 3 * line: 257}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[(line, line), (2 * line, line)]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[0],
        "pad_token": SPECIAL[0],
        "extra_special_tokens": dict(zip(("boi_token", "eoi_token", "image_token"), SPECIAL[1:], strict=True)),
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


class Model:
    """A tiny model in a folder. processing: settings of its image processor.

    Real ones are tied; of random ones that makes such as say their last token again and again.
    """

    def __init__(
        self, folder: Path, window: int = 9, tied: bool = False, head_dim: int = 16, **processing: Any
    ) -> None:
        from transformers import Gemma3ImageProcessorPil, Gemma3TextConfig

        self.folder = folder
        self.reference = reference_model(
            "Gemma3ForConditionalGeneration",
            text_config=Gemma3TextConfig(**{**TEXT, "head_dim": head_dim}, sliding_window=window),
            vision_config=siglip_config(image_size=TILE),
            mm_tokens_per_image=TOKENS,
            boi_token_index=BEGIN,
            eoi_token_index=STOP,
            image_token_index=SOFT,
            tie_word_embeddings=tied,
        )
        save(self.reference, folder)
        tokenizer_of_lines(folder)
        self.processor: Any = Gemma3ImageProcessorPil(size={"height": TILE, "width": TILE}, **processing)
        self.processor.save_pretrained(folder)

    def prompt(self, found: Registry, info: ModelInfo, text: str | list[int], *pictures: Image.Image) -> Prompt:
        tokenizer = Tokenizer.load(self.folder)
        value: Any = {"prompt" if isinstance(text, str) else "prompt_token_ids": text}
        if pictures:
            value["multi_modal_data"] = {"image": list(pictures)}
        return to_prompt(value, tokenizer, multimodal=MultimodalProcessor(found, info, tokenizer))

    def _inputs(self, prompt: Prompt, pictures: Sequence[Image.Image]) -> dict[str, Tensor]:
        """What transformers is given."""
        ids = torch.tensor([prompt.token_ids])
        given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if not pictures:
            return given
        made = self.processor(images=list(pictures), return_tensors="pt")
        return {**given, "token_type_ids": (ids == SOFT).long(), "pixel_values": made["pixel_values"]}

    @torch.inference_mode()
    def logits(self, prompt: Prompt, *pictures: Image.Image, model: Any = None) -> Tensor:
        """[tokens, vocab] of a prompt, by transformers."""
        logits: Tensor = (model or self.reference)(**self._inputs(prompt, pictures)).logits[0]
        return logits

    @torch.inference_mode()
    def greedy(self, prompt: Prompt, *pictures: Image.Image, model: Any = None, **settings: Any) -> list[int]:
        made = (model or self.reference).generate(
            **self._inputs(prompt, pictures),
            **{"do_sample": False, "max_new_tokens": 32, "eos_token_id": None, "pad_token_id": 0, **settings},
        )
        tokens: list[int] = made[0, len(prompt.token_ids) :].tolist()
        return tokens


PROMPTS: list[tuple[str, list[Image.Image]]] = [
    ("no picture, but a text of some length, longer than the window", []),
    ("<start_of_image>", [picture(1)]),
    ("what is at the end? <start_of_image>", [picture(2, 60, 30)]),
    ("a <start_of_image> in the middle", [picture(3, 20, 90)]),
    ("<start_of_image><start_of_image>side by side", [picture(4, 31, 31), picture(5, 64, 40)]),
    (
        "user\n<start_of_image> and <start_of_image>\n, again <start_of_image>.",
        [picture(6, 100, 30), picture(1), picture(7, 9, 40)],
    ),
]
"""None, one, several; of different sizes; at the start, in the middle and at the end."""

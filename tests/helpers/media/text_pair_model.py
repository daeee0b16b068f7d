"""Tiny random encoder-decoders for text, and what transformers and peft generate with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from llava_adapted import Kit
from torch import Tensor

from quire.records import Registry
from quire.text.inputs.inputs import PromptInput, to_prompt
from quire.text.inputs.multimodal import MultimodalProcessor
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import ModelInfo, Prompt
from quire_testing.tiny import byte_tokenizer, reference_model, save

START, BEGIN = 256, 257
"""Ids that the decoder starts with."""

TEXTS = [
    "a",
    "a text of some length, for the encoder",
    "another text, which takes more than sixty-four tokens, so that it is padded to a hundred and twenty-eight",
    "a text of some length, for the encoder",
]


@torch.no_grad()
def _listen(model: Any) -> None:
    """Let the answer depend on the source and on positions, more than on the token before."""
    if hasattr(model, "shared"):  # the T5 family
        if not getattr(model.config, "scale_decoder_outputs", False):
            _untie(model)
        return
    generator = torch.Generator().manual_seed(5)
    model.final_logits_bias.copy_(0.1 * torch.randn(model.final_logits_bias.shape, generator=generator))
    model.model.shared.weight.mul_(0.3)
    model.model.decoder.embed_positions.weight.mul_(3)
    for layer in model.model.decoder.layers:
        layer.encoder_attn.q_proj.weight.mul_(6)


def _untie(model: Any) -> None:
    """Give the head a table of its own, as all of the T5 family have but the first."""
    own = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(6))
    model.lm_head.weight = torch.nn.Parameter(own * model.config.d_model**-0.5)


class TextPairModel:
    """A tiny model in a folder, with a LoRA adapter on encoder and decoder."""

    def __init__(self, folder: Path, architecture: str, modules: str, **config: Any) -> None:
        self.folder = folder
        self.reference = reference_model(architecture, **config)
        _listen(self.reference)
        save(self.reference, folder)
        byte_tokenizer(folder)
        starts = {"decoder_start_token_id": START, "forced_bos_token_id": BEGIN, "eos_token_id": 256}
        (folder / "generation_config.json").write_text(json.dumps(starts))
        self.tokenizer = Tokenizer.load(folder)
        self.kit = Kit(folder, self, {"text": {"r": 4, "lora_alpha": 8, "target_modules": modules}})

    def prompt(self, found: Registry, info: ModelInfo, value: PromptInput) -> Prompt:
        return to_prompt(value, self.tokenizer, multimodal=MultimodalProcessor(found, info, self.tokenizer))

    def _inputs(self, text: str, ids: Sequence[int]) -> dict[str, Tensor]:
        return {
            "input_ids": torch.tensor([self.tokenizer.encode(text)]),
            "decoder_input_ids": torch.tensor([[START, BEGIN, *ids]]),
        }

    @torch.inference_mode()
    def logprobs(self, text: str, ids: Sequence[int]) -> list[float]:
        """Of each of the ids, by transformers."""
        logits = self.reference(**self._inputs(text, ids)).logits[0].log_softmax(-1)
        return [float(logits[1 + i, token]) for i, token in enumerate(ids)]

    @torch.inference_mode()
    def greedy(self, text: str, adapter: str = "", count: int = 24) -> list[int]:
        """The likeliest token after each, with the text's end like any other."""
        oracle, found = self.kit.oracle(adapter), list[int]()
        for _ in range(count):
            found.append(int(oracle(**self._inputs(text, found)).logits[0, -1].argmax()))
        return found

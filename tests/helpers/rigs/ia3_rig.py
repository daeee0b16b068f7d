"""Tiny models and IA³ adapters for them, written by peft, and what transformers and peft make of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor

from quire_testing.tiny import byte_tokenizer, reference_model, save

LLAMA_ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
Case = tuple[str, list[str] | None, list[str] | None, dict[str, Any]]
CASES: dict[str, Case] = {
    # architecture, target_modules and feedforward_modules (None = as peft chooses), settings of the model
    "llama": ("LlamaForCausalLM", None, None, {}),
    "llama_outputs": ("LlamaForCausalLM", LLAMA_ALL, [], {}),
    "llama_inputs": ("LlamaForCausalLM", LLAMA_ALL, LLAMA_ALL, {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("Qwen2ForCausalLM", None, None, {}),
    "gemma2": ("Gemma2ForCausalLM", None, None, {}),
    "mixtral": ("MixtralForCausalLM", ["k_proj", "v_proj"], [], {}),
    "phi3": ("Phi3ForCausalLM", ["qkv_proj", "down_proj"], ["down_proj"], {}),
    "gpt2": ("GPT2LMHeadModel", None, None, {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 512}),
    "opt": ("OPTForCausalLM", None, None, {"ffn_dim": 96, "word_embed_proj_dim": 64}),
}


def write_adapter(folder: Path, case: Case, seed: int) -> Any:
    """An adapter with lively vectors in peft's format; gives the model with it at work."""
    architecture, targets, inputs, overrides = case
    conv = architecture.startswith("GPT2")
    config = peft.IA3Config(
        target_modules=targets, feedforward_modules=inputs, fan_in_fan_out=conv, task_type="CAUSAL_LM"
    )
    model = peft.get_peft_model(reference_model(architecture, **overrides), config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ia3_l" in name:
                parameter.copy_(1 + 0.5 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    return model.eval()


class World:
    """A tiny model in a folder, three adapters for it, and what transformers and peft make of them."""

    def __init__(self, root: Path, case: Case) -> None:
        architecture, _, _, overrides = case
        self.folder = root / "base"
        self.models: dict[str | None, Any] = {None: reference_model(architecture, **overrides)}
        save(self.models[None], self.folder)
        byte_tokenizer(self.folder)
        self.paths = {name: root / name for name in "abc"}
        for seed, (name, path) in enumerate(self.paths.items()):
            self.models[name] = write_adapter(path, case, seed)

    def logits(self, name: str | None, tokens: Sequence[int]) -> Tensor:
        with torch.inference_mode():
            found: Tensor = self.models[name](torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return found

    def greedy(self, name: str | None, tokens: Sequence[int], count: int) -> list[int]:
        ids = list(tokens)
        for _ in range(count):
            ids.append(int(self.logits(name, ids)[-1].argmax()))
        return ids[len(tokens) :]


def write_lora(folder: Path) -> Any:
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=LLAMA_ALL, init_lora_weights=False, task_type="CAUSAL_LM"
    )
    torch.manual_seed(1)
    architecture, _, _, overrides = CASES["llama"]
    model = peft.get_peft_model(reference_model(architecture, **overrides), config)
    model.save_pretrained(folder)
    return model.eval()

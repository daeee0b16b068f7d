"""Tiny models that GGUF files are written from, and transformers' models of what is read from the files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.torch import save_file

from quire_kernels.quantized_rows import QuantizedRows
from quire_models.gguf.file.parts import open_parts
from quire_models.gguf.folder import model_folder, open_tensors

VOCAB = 264
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 9, "num_hidden_layers": 7}
MOE = {"head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2, "norm_topk_prob": True}
ROPE = {"rope_theta": 5e5}
SCALED = {"rope_type": "linear", "factor": 4.0, **ROPE}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 16.0, **ROPE}


@dataclass(frozen=True)
class Case:
    """A model at a tiny size. metadata: further keys of its file."""

    architecture: str
    config_class: str
    config: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)

    def model(self) -> Any:
        torch.manual_seed(0)
        made = getattr(transformers, self.architecture)(
            getattr(transformers, self.config_class)(**{**COMMON, **self.config})
        )
        for parameter in made.parameters():
            parameter.data = torch.randn_like(parameter) * 0.08 + (0.3 if parameter.ndim == 1 else 0)
        return made.eval()


CASES = {
    "llama": Case("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": ROPE}),
    "llama, tied, with biases": Case(
        "LlamaForCausalLM", "LlamaConfig", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    ),
    "llama, linear": Case(
        "LlamaForCausalLM",
        "LlamaConfig",
        {"rope_parameters": SCALED},
        {"llama__rope__scaling__type": "linear", "llama__rope__scaling__factor": 4.0},
    ),
    "llama, yarn": Case(
        "LlamaForCausalLM",
        "LlamaConfig",
        {"rope_parameters": YARN},
        {
            "llama__rope__scaling__type": "yarn",
            "llama__rope__scaling__factor": 4.0,
            "llama__rope__scaling__original_context_length": 32,
            "llama__rope__scaling__yarn_beta_fast": 16.0,
        },
    ),
    "mixtral": Case("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": Case("Qwen2ForCausalLM", "Qwen2Config"),
    "qwen3": Case("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 16}),
    "qwen3 moe": Case("Qwen3MoeForCausalLM", "Qwen3MoeConfig", MOE),
    "gemma2": Case("Gemma2ForCausalLM", "Gemma2Config", GEMMA),
    "gemma3": Case("Gemma3ForCausalLM", "Gemma3TextConfig", GEMMA),
    "phi3": Case("Phi3ForCausalLM", "Phi3Config", {"sliding_window": 9}),
    "olmo2": Case("Olmo2ForCausalLM", "Olmo2Config"),
    "granite": Case("GraniteForCausalLM", "GraniteConfig", {"residual_multiplier": 0.7, "embedding_multiplier": 1.5}),
    "gpt2": Case(
        "GPT2LMHeadModel", "GPT2Config", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": None}
    ),
    "bert": Case("BertModel", "BertConfig"),
}


def in_transformers(case: Case, path: Path, cache: Path) -> Any:
    """transformers' model with the config that is made from the file, and with the file's tensors, dequantized."""
    folder = cache / "transformers"
    folder.mkdir(parents=True)
    shutil.copy(model_folder(open_parts(path), cache / "gguf") / "config.json", folder)
    tensors = open_tensors(open_parts(path))
    values = {}
    for name in tensors:
        value = tensors.read(name)
        assert tuple(value.shape) == tensors[name]
        plain = value.dequantized() if isinstance(value, QuantizedRows) else value.float()
        values[name] = plain.contiguous().clone()
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    made, found = getattr(transformers, case.architecture).from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    assert not any(kind for name, kind in found.items() if not all("pooler" in key for key in kind)), found
    return made.eval()


@torch.inference_mode()
def outputs(model: Any) -> torch.Tensor:
    found = model(torch.arange(3, 33)[None])
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


def quantized(kinds: dict[str, Type], default: Type) -> Any:
    """A function that chooses the type of a tensor by a part of its name."""
    return lambda name: next((kind for part, kind in kinds.items() if part in name), default)


MIXED = quantized({"attn_v": Type.Q8_0, "ffn_down": Type.Q5_1, "token_embd": Type.Q8_0, "_inp": Type.F32}, Type.Q5_0)

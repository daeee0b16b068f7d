"""Architectures whose checkpoints bring code, which transformers lacks: compared with the class of the same parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from own_code_classes import SAME_PARTS
from safetensors.torch import save_file
from torch import Tensor

from quire_testing import check_architecture
from quire_testing.tiny import SIZES, reference_model

State = dict[str, Tensor]
HEADS, KV_HEADS, HEAD_DIM = SIZES["num_attention_heads"], SIZES["num_key_value_heads"], SIZES["head_dim"]


def renamed(state: Mapping[str, Tensor], *pairs: tuple[str, str]) -> State:
    found = {}
    for name, tensor in state.items():
        found[reduce(lambda own, pair: own.replace(*pair), pairs, name)] = tensor.contiguous()
    return found


def fused(state: Mapping[str, Tensor], order: Callable[[list[Tensor]], Tensor], name: str) -> State:
    """Queries, keys and values of each layer as one tensor."""
    found = dict(state)
    for layer in range(SIZES["num_hidden_layers"]):
        path = f"model.layers.{layer}.self_attn"
        found[f"{path}.{name}.weight"] = order([found.pop(f"{path}.{part}_proj.weight") for part in "qkv"])
    return found


def by_head(parts: list[Tensor]) -> Tensor:
    q, k, v = (part.unflatten(0, (KV_HEADS, -1, HEAD_DIM)) for part in parts)
    return torch.cat([q, k, v], 1).flatten(0, 2)


def internlm2(state: State) -> State:
    pairs = (
        ("embed_tokens", "tok_embeddings"),
        ("self_attn.o_proj", "attention.wo"),
        ("self_attn", "attention"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("lm_head", "output"),
    )
    return renamed(fused(state, by_head, "wqkv"), *pairs)


def exaone(state: State) -> State:
    pairs = (
        ("model.embed_tokens", "transformer.wte"),
        ("model.layers", "transformer.h"),
        ("model.norm", "transformer.ln_f"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "self_attn.out_proj"),
        ("self_attn", "attn.attention"),
        ("gate_proj", "c_fc_0"),
        ("up_proj", "c_fc_1"),
        ("mlp.down_proj", "mlp.c_proj"),
    )
    return renamed(state, *pairs)


def baichuan(state: State) -> State:
    found = fused(state, torch.cat, "W_pack")
    found["lm_head.weight"] = found["lm_head.weight"] * torch.linspace(0.5, 2, SIZES["vocab_size"])[:, None]
    return found


def baichuan_reference(name: str) -> Any:
    model = reference_model(name, num_key_value_heads=4)
    with torch.no_grad():
        model.lm_head.weight.copy_(torch.nn.functional.normalize(model.lm_head.weight))
    return model


MULTIPLIERS = {"embedding_multiplier": 1.5, "residual_multiplier": 1.4 / 2**0.5, "logits_scaling": 4.0}
MINICPM = {"scale_emb": 1.5, "scale_depth": 1.4, "dim_model_base": 16, "tie_word_embeddings": False}
SILU = {"activation_function": "silu", "layer_norm_epsilon": 1e-6, "num_layers": 2}
CASES: dict[str, tuple[dict[str, Any], Callable[[str], Any], Callable[[State], State]]] = {
    "InternLM2ForCausalLM": ({"bias": False}, reference_model, internlm2),
    "InternLM3ForCausalLM": ({"qkv_bias": False}, reference_model, dict),
    "IQuestCoderForCausalLM": ({}, reference_model, dict),
    "ExaoneForCausalLM": (SILU, reference_model, exaone),
    "BaichuanForCausalLM": ({}, baichuan_reference, baichuan),
    "MiniCPMForCausalLM": (MINICPM, lambda name: reference_model(name, attention_multiplier=0.25, **MULTIPLIERS), dict),
}


@pytest.mark.parametrize("architecture", SAME_PARTS)
def test_it_has_the_logits_of_the_class_with_the_same_parts(architecture: str) -> None:
    settings, build, change = CASES[architecture]

    def reference(folder: Path) -> Callable[[Tensor], Tensor]:
        model = build(SAME_PARTS[architecture])
        base = {key: value for key, value in model.config.to_dict().items() if key in SIZES or key == "rms_norm_eps"}
        config = {**base, "architectures": [architecture], "model_type": "own_code", "hidden_act": "silu", **settings}
        (folder / "config.json").write_text(json.dumps(config))
        save_file(change(dict(model.state_dict())), folder / "model.safetensors", {"format": "pt"})
        return lambda ids: model(ids, use_cache=False).logits[0]

    check_architecture(architecture, reference=reference)

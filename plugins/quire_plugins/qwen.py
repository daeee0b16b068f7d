"""Qwen 2 and 2.5: Llama with biases on queries, keys and values. Qwen 3: norms on them instead, dense or mixture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire import Architecture, hookimpl
from quire_models import Decoder, Moe, Norm, configs, names, with_attention, with_blocks
from quire_plugins import llama


def _windows(c: Any, decoder: Decoder) -> Decoder:
    def change(layer: int, block: Any) -> Any:
        return replace(block, attn=replace(block.attn, window=configs.window(c, layer)))

    return with_blocks(decoder, change)


def qwen2(c: Any) -> Decoder:
    """`Qwen2Config` as parts."""
    return with_attention(_windows(c, llama.decoder(c)), qkv_bias=True)


def qwen3(c: Any) -> Decoder:
    """`Qwen3Config` as parts."""
    return with_attention(_windows(c, llama.decoder(c)), qk_norm=Norm(c.rms_norm_eps))


def qwen3_moe(c: Any) -> Decoder:
    """`Qwen3MoeConfig` as parts: every `decoder_sparse_step`-th layer is a mixture."""
    moe = Moe(
        hidden=c.moe_intermediate_size,
        experts=c.num_experts,
        top_k=c.num_experts_per_tok,
        renormalise=c.norm_topk_prob,
        act=configs.act(c.hidden_act),
    )

    def change(layer: int, block: Any) -> Any:
        dense = layer in c.mlp_only_layers or (layer + 1) % c.decoder_sparse_step
        return block if dense else replace(block, mlp=moe)

    decoder = with_attention(llama.decoder(c), qk_norm=Norm(c.rms_norm_eps), window=c.sliding_window)
    return with_blocks(decoder, change)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Three generations."""
    yield Architecture(name="Qwen2ForCausalLM", decoder=qwen2, names=names.LLAMA)
    yield Architecture(name="Qwen3ForCausalLM", decoder=qwen3, names=names.LLAMA)
    yield Architecture(name="Qwen3MoeForCausalLM", decoder=qwen3_moe, names=names.LLAMA | names.MOE)

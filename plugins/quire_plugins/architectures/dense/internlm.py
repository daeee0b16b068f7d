"""InternLM 2, 2.5 and 3: Llama's parts; InternLM 2 stores queries, keys and values fused by head.

transformers has no class for the config of InternLM 2, whose checkpoints bring code; its fields are those of Llama
except `bias`. Those of InternLM 3 are read by transformers' class.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Decoder,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_attention,
    with_blocks,
)
from quire_plugins.architectures import llama

NAMES_2 = WeightsMapper(
    (
        ("model.tok_embeddings", "embed"),
        ("model.layers", "blocks"),
        ("model.norm", "norm"),
        ("output", "head"),
        ("attention_norm", "attn_in"),
        ("ffn_norm", "mlp_in"),
        ("attention.wqkv", "attn.qkv"),
        ("attention.wo", "attn.o"),
        ("feed_forward.w1", "mlp.gate"),
        ("feed_forward.w3", "mlp.up"),
        ("feed_forward.w2", "mlp.down"),
    ),
    transforms=(("*.attn.qkv.*", names.BY_HEAD),),
    ignored=names.ROTARY_TABLES,
)


def internlm2(c: Any) -> Decoder:
    bias = configs.optional(c, "bias", False)
    return with_attention(llama.decoder(c), qkv_bias=bias, out_bias=bias)


def internlm3(c: Any) -> Decoder:
    qkv = configs.optional(c, "qkv_bias", configs.optional(c, "attention_bias", False))
    bias = configs.optional(c, "bias", configs.optional(c, "mlp_bias", False))
    plain = with_attention(llama.decoder(c), qkv_bias=qkv, out_bias=bias)
    return with_blocks(plain, lambda _, block: replace(block, mlp=replace(block.mlp, bias=bias)))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language models of both generations."""
    yield Architecture("InternLM2ForCausalLM", internlm2, NAMES_2)
    yield Architecture("InternLM3ForCausalLM", internlm3, names.LLAMA)

"""EXAONE: version 4 normalizes after each branch and has no positions in full attention; 3 and 3.5 are Llama's parts.

transformers has no class for the config of versions 3 and 3.5, whose checkpoints bring code; its fields are read here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Decoder,
    GatedMlp,
    RMSNorm,
    Rope,
    WeightsMapper,
    config_fields as configs,
    headless,
    hookimpl,
    weight_names as names,
    with_attention,
    with_blocks,
)
from quire_plugins.architectures import llama

NAMES_3 = WeightsMapper(
    (
        ("transformer.wte", "embed"),
        ("transformer.h", "blocks"),
        ("transformer.ln_f", "norm"),
        ("lm_head", "head"),
        ("ln_1", "attn_in"),
        ("ln_2", "mlp_in"),
        ("attn.attention", "attn"),
        ("q_proj", "q"),
        ("k_proj", "k"),
        ("v_proj", "v"),
        ("out_proj", "o"),
        ("c_fc_0", "gate"),
        ("c_fc_1", "up"),
        ("c_proj", "down"),
    ),
    ignored=("*.rotary.inv_freq",),
)


def exaone3(c: Any) -> Decoder:
    norm, head_dim = RMSNorm(c.layer_norm_epsilon), configs.head_dim(c)
    attention = Attention(c.num_attention_heads, configs.kv_heads(c), head_dim, Rope.from_config(c, head_dim))
    block = Block(attention, GatedMlp(c.intermediate_size, configs.act(c.activation_function)), norm)
    tied = configs.optional(c, "tie_word_embeddings", False)
    return Decoder(c.vocab_size, c.hidden_size, (block,) * c.num_layers, norm, tied=tied)


def exaone4(c: Any) -> Decoder:
    normed = with_attention(llama.decoder(c), qk_norm=RMSNorm(c.rms_norm_eps))

    def block(layer: int, part: Any) -> Block:
        window = configs.window(c, layer)
        rope = part.attn.rope if window is not None or c.sliding_window is None else None
        return replace(part, attn=replace(part.attn, window=window, rope=rope), norm_in=False, norm_out=True)

    return with_blocks(normed, block)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """EXAONE 3 and 3.5, EXAONE 4, and the classes of EXAONE 4 without a language head."""
    yield Architecture("ExaoneForCausalLM", exaone3, NAMES_3)
    yield Architecture("Exaone4ForCausalLM", exaone4, names.LLAMA | names.PRE_AND_POST_NORM)
    yield from headless("Exaone4", exaone4, names.LLAMA | names.PRE_AND_POST_NORM)

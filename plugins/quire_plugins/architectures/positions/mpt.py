"""MPT: ALiBi, norms without biases, clipped queries, keys and values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    CheckpointError,
    Decoder,
    LayerNorm,
    Mlp,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)
from quire_plugins.architectures.positions.alibi import mpt_slopes

NAMES = WeightsMapper(
    (
        ("transformer.wte", "embed"),
        ("transformer.blocks", "blocks"),
        ("transformer.norm_f", "norm"),
        ("lm_head", "head"),
        ("norm_1", "attn_in"),
        ("norm_2", "mlp_in"),
        ("Wqkv", "qkv"),
        ("out_proj", "o"),
        ("ffn", "mlp"),
        ("up_proj", "up"),
        ("down_proj", "down"),
    )
)


def decoder(c: Any) -> Decoder:
    settings = c.attn_config
    if not _setting(settings, "alibi", True) or _setting(settings, "qk_ln", False):
        raise CheckpointError("config.json has attn_config without alibi, or with qk_ln; neither is supported.")
    attention = Attention(
        c.n_heads,
        c.n_heads,
        c.d_model // c.n_heads,
        scale=_setting(settings, "softmax_scale", None),
        clip=_setting(settings, "clip_qkv", None) or None,
        alibi=mpt_slopes(c.n_heads, _setting(settings, "alibi_bias_max", 8)),
    )
    norm = LayerNorm(c.layer_norm_epsilon, bias=False)
    block = Block(attention, Mlp(4 * c.d_model, "gelu", bias=False), norm)
    tied = configs.optional(c, "tie_word_embeddings", True)
    return Decoder(c.vocab_size, c.d_model, (block,) * c.n_layers, norm, tied=tied)


def _setting(settings: Any, name: str, default: Any) -> Any:
    """A field of `attn_config`, which is an object or, in a config without a class, a dict."""
    return settings.get(name, default) if isinstance(settings, dict) else getattr(settings, name, default)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model with multi-head attention and ALiBi."""
    yield Architecture("MptForCausalLM", decoder, NAMES)

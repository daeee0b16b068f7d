"""Gemma 4 (text): per-layer embeddings, blocks that share keys and values, two widths of heads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    CheckpointError,
    GatedMlp,
    RMSNorm,
    Rope,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures.per_layer.parts import PerLayerBlock, PerLayerDecoder

ROOTS = ("model", "model.language_model")
"""Of the language model, alone and within a model with towers."""

_TABLES = (
    ("embed_tokens_per_layer", "per_layer.embed"),
    ("per_layer_model_projection", "per_layer.projection"),
    ("per_layer_projection_norm", "per_layer.norm"),
)

NAMES = (
    names.LLAMA
    | names.PRE_AND_POST_NORM
    | WeightsMapper(
        (
            ("per_layer_input_gate", "input_gate"),
            ("per_layer_projection", "input_out"),
            ("post_per_layer_input_norm", "input_norm"),
            *((f"{root}.{theirs}", ours) for root in ROOTS for theirs, ours in _TABLES),
        )
    )
)


def decoder(c: Any) -> PerLayerDecoder:
    if c.enable_moe_block or c.use_bidirectional_attention == "all":
        raise CheckpointError(
            "config.json has enable_moe_block, or use_bidirectional_attention for all; neither is supported."
        )
    norm, act = RMSNorm(c.rms_norm_eps), configs.act(c.hidden_activation)

    def block(layer: int) -> PerLayerBlock:
        wide = c.use_double_wide_mlp and _shares(c, layer)
        mlp = GatedMlp(c.intermediate_size * (2 if wide else 1), act)
        attention = _attention(c, layer, norm)
        return PerLayerBlock(
            attention, mlp, norm, norm_out=True, layer=layer, inputs=c.hidden_size_per_layer_input or 0, act=act
        )

    return PerLayerDecoder(
        vocab=c.vocab_size,
        width=c.hidden_size,
        blocks=tuple(map(block, range(c.num_hidden_layers))),
        norm=norm,
        tied=c.tie_word_embeddings,
        embed_scale=c.hidden_size**0.5,
        logit_softcap=c.final_logit_softcapping,
        inputs=c.hidden_size_per_layer_input or 0,
        inputs_vocab=c.vocab_size_per_layer_input,
        eps=c.rms_norm_eps,
    )


def _shares(c: Any, layer: int) -> bool:
    """Whether the block reads the keys and values of an earlier one."""
    return bool(c.num_kv_shared_layers and layer >= c.num_hidden_layers - c.num_kv_shared_layers)


def kv_source(c: Any, layer: int) -> int | None:
    """The block whose keys and values this one reads: the last with its kind of attention and keys of its own."""
    if not _shares(c, layer):
        return None
    first = c.num_hidden_layers - c.num_kv_shared_layers
    return max(i for i in range(first) if c.layer_types[i] == c.layer_types[layer])


def _own_sizes(c: Any, layer: int) -> dict[str, int]:
    """The settings of a block that differ from those of the config."""
    every = configs.optional(c, "per_layer_config", None) or {}
    return dict(every.get(layer) or every.get(str(layer)) or {})


def _attention(c: Any, layer: int, norm: RMSNorm) -> Attention:
    own, kind = _own_sizes(c, layer), c.layer_types[layer]
    head_dim = own.get("head_dim", c.head_dim)
    same = c.attention_k_eq_v and kind == "full_attention"
    return Attention(
        heads=c.num_attention_heads,
        kv_heads=own.get("num_key_value_heads", c.num_key_value_heads),
        head_dim=head_dim,
        rope=Rope.from_config(c, head_dim, kind),
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
        qk_norm=norm,
        window=configs.window(c, layer),
        scale=1.0,
        v_norm=RMSNorm(c.rms_norm_eps, affine=False),
        v_from_k=same,
        kv_from=kv_source(c, layer),
    )


def weights(c: Any) -> WeightsMapper:
    """Also ignores matrices that blocks with shared keys and values do not need."""
    return NAMES | unused_matrices(c)


def unused_matrices(c: Any) -> WeightsMapper:
    """Ignores what checkpoints may have of blocks with shared keys and values."""
    shared = [f"{root}.layers.{i}" for root in ROOTS for i in range(c.num_hidden_layers) if _shares(c, i)]
    return WeightsMapper(
        ignored=tuple(f"{layer}.self_attn.{name}.*" for layer in shared for name in ("k_proj", "v_proj", "k_norm"))
    )


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model without its towers."""
    yield Architecture("Gemma4ForCausalLM", decoder, weights)

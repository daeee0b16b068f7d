"""Gemma 3n (text): several residual streams, per-layer embeddings, blocks that share keys and values, sparse MLPs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from quire.plugin import (
    Architecture,
    Attention,
    GatedMlp,
    RMSNorm,
    Rope,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures.per_layer import gemma4
from quire_plugins.architectures.per_layer.altup import AltUpBlock, AltUpDecoder, SparseActivation

_STREAMS = (("altup_projections", "streams_in"), ("altup_unembed_projections", "streams_out"))
NAMES = (
    gemma4.NAMES
    | names.LANGUAGE_MODEL
    | WeightsMapper(
        (
            *((f"{root}.{theirs}", ours) for root in gemma4.ROOTS for theirs, ours in _STREAMS),
            ("altup.modality_router", "router"),
            ("altup.router_norm", "router_norm"),
            ("altup.prediction_coefs", "predict"),
            ("altup.correction_coefs", "correct"),
            ("altup.correct_output_scale", "output_scale"),
            ("laurel.linear_left", "laurel_left"),
            ("laurel.linear_right", "laurel_right"),
            ("laurel.post_laurel_norm", "laurel_norm"),
        ),
        ignored=tuple(f"model.{tower}.*" for tower in ("vision_tower", "audio_tower", "embed_vision", "embed_audio")),
    )
)


def decoder(c: Any) -> AltUpDecoder:
    """Describes `Gemma3nTextConfig`, or that within `Gemma3nConfig`."""
    text = configs.optional(c, "text_config", c)
    return AltUpDecoder(
        vocab=text.vocab_size,
        width=text.hidden_size,
        blocks=tuple(_block(text, layer) for layer in range(text.num_hidden_layers)),
        norm=RMSNorm(text.rms_norm_eps),
        tied=c.tie_word_embeddings,
        embed_scale=text.hidden_size**0.5,
        logit_softcap=text.final_logit_softcapping,
        inputs=text.hidden_size_per_layer_input,
        inputs_vocab=text.vocab_size_per_layer_input,
        eps=text.rms_norm_eps,
        streams=text.altup_num_inputs,
    )


def _block(c: Any, layer: int) -> AltUpBlock:
    norm, act, sparsity = (
        RMSNorm(c.rms_norm_eps),
        configs.act(c.hidden_activation),
        c.activation_sparsity_pattern[layer],
    )
    attention = Attention(
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        head_dim=c.head_dim,
        rope=Rope.from_config(c, c.head_dim, c.layer_types[layer]),
        qkv_bias=c.attention_bias,
        out_bias=c.attention_bias,
        qk_norm=norm,
        window=configs.window(c, layer),
        scale=1.0,
        v_norm=RMSNorm(c.rms_norm_eps, affine=False),
        kv_from=gemma4.kv_source(c, layer),
    )
    return AltUpBlock(
        attn=attention,
        mlp=GatedMlp(c.intermediate_size[layer], SparseActivation(act, sparsity) if sparsity else act),
        norm=norm,
        layer=layer,
        inputs=c.hidden_size_per_layer_input,
        act=act,
        streams=c.altup_num_inputs,
        active=c.altup_active_idx,
        laurel=c.laurel_rank,
        scaled=c.altup_correct_scale,
    )


def weights(c: Any) -> WeightsMapper:
    """Also ignores matrices that blocks with shared keys and values do not need."""
    return NAMES | gemma4.unused_matrices(configs.optional(c, "text_config", c))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model; of the model with media only the language model, without media."""
    yield Architecture("Gemma3nForCausalLM", decoder, weights)
    yield Architecture("Gemma3nForConditionalGeneration", decoder, weights)

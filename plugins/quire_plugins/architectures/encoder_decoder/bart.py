"""BART and mBART: learned positions; BART's norms follow each sum, those of mBART come before each branch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    BlockPart,
    Context,
    CrossAttention,
    CrossAttentionBlock,
    Decoder,
    EncoderInput,
    InputMapper,
    LayerNorm,
    Mlp,
    Positions,
    PostNormBlock,
    RowAttention,
    TextEncoderTower,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)

if TYPE_CHECKING:
    from quire_plugins.architectures.encoder_decoder.encoder_prompts import EncoderPromptProcessor

BART, MBART = "BartForConditionalGeneration", "MBartForConditionalGeneration"

OFFSET = 2
"""Unused rows before the first position of the tables."""


def decoder(c: Any) -> Decoder:
    """Describes the decoder of `BartConfig` and `MBartConfig`."""
    heads, size = c.decoder_attention_heads, c.d_model // c.decoder_attention_heads
    is_bart = c.model_type == "bart"
    block = CrossAttentionBlock(
        attn=Attention(heads, heads, size, qkv_bias=True, out_bias=True),
        cross=CrossAttention(heads, heads, size),
        mlp=Mlp(c.decoder_ffn_dim, configs.act(c.activation_function)),
        norm=LayerNorm(),
        norm_after=is_bart,
    )
    return Decoder(
        vocab=c.vocab_size,
        width=c.d_model,
        blocks=(block,) * c.decoder_layers,
        norm=None if is_bart else LayerNorm(),
        tied=True,
        embed_scale=_embed_scale(c),
        embed_norm=LayerNorm(),
        head_bias=True,
        positions=Positions(c.max_position_embeddings, OFFSET),
        encoder_input=EncoderInput(c.max_position_embeddings, is_text=True),
    )


def tower(c: Any) -> TextEncoderTower:
    """Describes the encoder of both configs."""
    heads, norm = c.encoder_attention_heads, LayerNorm()
    attention = RowAttention(heads, heads, c.d_model // heads)
    mlp = Mlp(c.encoder_ffn_dim, configs.act(c.activation_function))
    is_bart = c.model_type == "bart"
    block: BlockPart = PostNormBlock(attention, mlp, norm) if is_bart else Block(attention, mlp, norm)
    return TextEncoderTower(
        length=c.max_position_embeddings,
        blocks=(block,) * c.encoder_layers,
        norm=None if is_bart else norm,
        embed_norm=norm,
        embed_scale=_embed_scale(c),
        positions=Positions(c.max_position_embeddings, OFFSET),
    )


def _embed_scale(c: Any) -> float:
    return float(c.d_model**0.5) if c.scale_embedding else 1.0


NAMES = names.BART_BLOCKS | WeightsMapper(
    (
        ("model.shared", "embed"),
        ("final_logits_bias", "head.bias"),
        ("model.encoder.embed_positions.weight", "tower.positions"),
        ("model.encoder.layernorm_embedding", "tower.embed_norm"),
        ("model.encoder.layers", "tower.blocks"),
        ("model.encoder.layer_norm", "tower.norm"),
        ("model.decoder.embed_positions", "positions"),
        ("model.decoder.layernorm_embedding", "embed_norm"),
        ("model.decoder.layers", "blocks"),
        ("model.decoder.layer_norm", "norm"),
        ("encoder_attn", "cross"),
        ("encoder_attn_layer_norm", "cross_in"),
    ),
    transforms=(("head.bias", names.as_vector),),
    ignored=("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
    zeros=("head.bias",),
)


def _source(context: Context) -> EncoderPromptProcessor:
    from quire_plugins.architectures.encoder_decoder.encoder_prompts import EncoderPromptProcessor

    return EncoderPromptProcessor(context)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both have the same parts."""
    yield Architecture(BART, decoder, NAMES, tower)
    yield Architecture(MBART, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """The text of the encoder."""
    yield InputMapper("bart/encoder_prompt", BART, "encoder_prompt", _source)
    yield InputMapper("mbart/encoder_prompt", MBART, "encoder_prompt", _source)

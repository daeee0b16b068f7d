"""T5, FLAN-T5, UL2, mT5 and UMT5: biases of relative positions in encoder and decoder, and unscaled scores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Attention,
    Block,
    Context,
    CrossAttention,
    CrossAttentionBlock,
    Decoder,
    EncoderInput,
    GatedMlp,
    InputMapper,
    Mlp,
    PositionBias,
    RMSNorm,
    RowAttention,
    TextEncoderTower,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)

if TYPE_CHECKING:
    from quire_plugins.architectures.encoder_decoder.encoder_prompts import EncoderPromptProcessor

NAMES = ("T5ForConditionalGeneration", "MT5ForConditionalGeneration", "UMT5ForConditionalGeneration")
DEFAULT_LENGTH = 512


def decoder(c: Any) -> Decoder:
    """Describes the decoder of `T5Config`, `MT5Config` and `UMT5Config`.

    Only the first T5 has the embedding table as its head; the others say so by `tie_word_embeddings`, which
    transformers keeps as `scale_decoder_outputs`.
    """
    heads, size, norm = c.num_heads, c.d_kv, RMSNorm(c.layer_norm_epsilon)
    tied = bool(configs.optional(c, "scale_decoder_outputs", False))
    block = CrossAttentionBlock(
        attn=Attention(heads, heads, size, scale=1.0, position_bias=_bias(c, bidirectional=False)),
        cross=CrossAttention(heads, heads, size, qkv_bias=False, out_bias=False, scale=1.0),
        mlp=_mlp(c),
        norm=norm,
    )
    return Decoder(
        vocab=c.vocab_size,
        width=c.d_model,
        blocks=(block,) * c.num_decoder_layers,
        norm=norm,
        tied=tied,
        logit_scale=c.d_model**-0.5 if tied or c.model_type == "umt5" else 1.0,
        encoder_input=EncoderInput(_length(c), is_text=True),
    )


def tower(c: Any) -> TextEncoderTower:
    """Describes the encoder of these configs."""
    heads, norm = c.num_heads, RMSNorm(c.layer_norm_epsilon)
    bias = _bias(c, bidirectional=True)
    attention = RowAttention(heads, heads, c.d_kv, qkv_bias=False, out_bias=False, scale=1.0, position_bias=bias)
    return TextEncoderTower(length=_length(c), blocks=(Block(attention, _mlp(c), norm),) * c.num_layers, norm=norm)


def _length(c: Any) -> int:
    """Most tokens of the encoder and of the decoder."""
    return configs.optional(c, "n_positions", None) or DEFAULT_LENGTH


def _bias(c: Any, bidirectional: bool) -> PositionBias:
    shared = c.model_type != "umt5"
    return PositionBias(
        c.relative_attention_num_buckets, c.relative_attention_max_distance, bidirectional, shared=shared
    )


def _mlp(c: Any) -> GatedMlp | Mlp:
    act = configs.act(c.dense_act_fn)
    return GatedMlp(c.d_ff, act) if c.is_gated_act else Mlp(c.d_ff, act, bias=False)


def tensor_names(c: Any) -> WeightsMapper:
    """What a numbered part of a layer is depends on whether the layer has cross-attention."""
    norms = [(f"encoder.block.{i}.layer.1.layer_norm", f"tower.blocks.{i}.mlp_in") for i in range(c.num_layers)]
    return WeightsMapper(
        (
            ("shared", "embed"),
            ("lm_head", "head"),
            ("encoder.block", "tower.blocks"),
            ("encoder.final_layer_norm", "tower.norm"),
            ("decoder.block", "blocks"),
            ("decoder.final_layer_norm", "norm"),
            ("layer.0.SelfAttention", "attn"),
            ("layer.0.SelfAttention.relative_attention_bias", "attn.position_bias"),
            ("layer.0.layer_norm", "attn_in"),
            ("layer.1.EncDecAttention", "cross"),
            ("layer.1.layer_norm", "cross_in"),
            ("layer.2.layer_norm", "mlp_in"),
            ("layer.1.DenseReluDense", "mlp"),
            ("layer.2.DenseReluDense", "mlp"),
            ("wi", "up"),
            ("wi_0", "gate"),
            ("wi_1", "up"),
            ("wo", "down"),
            *norms,
        ),
        ignored=(
            "encoder.embed_tokens.weight",
            "decoder.embed_tokens.weight",
            "decoder.block.*.layer.1.EncDecAttention.relative_attention_bias.weight",
        ),
    )


def _source(context: Context) -> EncoderPromptProcessor:
    from quire_plugins.architectures.encoder_decoder.encoder_prompts import EncoderPromptProcessor

    return EncoderPromptProcessor(context)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """FLAN-T5, UL2 and T5 1.1 have the name of T5."""
    for name in NAMES:
        yield Architecture(name, decoder, tensor_names, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """The text of the encoder."""
    for name in NAMES:
        yield InputMapper(f"{name.partition('For')[0].lower()}/encoder_prompt", name, "encoder_prompt", _source)

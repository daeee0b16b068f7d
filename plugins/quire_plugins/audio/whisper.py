"""Whisper: speech is the encoder input of a decoder that transcribes it or translates it into English."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Attention,
    Context,
    CrossAttention,
    CrossAttentionBlock,
    Decoder,
    DemoModel,
    EncoderInput,
    InputMapper,
    LayerNorm,
    LogitsProcessor,
    Mlp,
    Positions,
    Transcriber,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_demos import FOLDER as DEMOS
from quire_plugins.audio import whisper_encoder

if TYPE_CHECKING:
    from quire_plugins.audio.whisper_inputs import SpeechProcessor
    from quire_plugins.audio.whisper_rules import WhisperLogitsProcessor
    from quire_plugins.audio.whisper_speech import WhisperPrompts

ARCHITECTURE = "WhisperForConditionalGeneration"

NAMES = whisper_encoder.names("model.encoder", "tower") | names.WeightsMapper(
    (
        ("model.decoder.embed_tokens", "embed"),
        ("model.decoder.embed_positions", "positions"),
        ("model.decoder.layers", "blocks"),
        ("model.decoder.layer_norm", "norm"),
        ("proj_out", "head"),
        ("encoder_attn", "cross"),
        ("encoder_attn_layer_norm", "cross_in"),
    ),
    zeros=("blocks.*.attn.k.bias", "blocks.*.cross.k.bias"),
)
"""Checkpoint names shared by encoder and decoder, and names of the decoder."""


def decoder(c: Any) -> Decoder:
    """Describes `WhisperConfig`. `scale_embedding` is ignored, as in transformers."""
    norm, heads = LayerNorm(), c.decoder_attention_heads
    size = c.d_model // heads
    block = CrossAttentionBlock(
        attn=Attention(heads, heads, size, qkv_bias=True, out_bias=True),
        cross=CrossAttention(heads, heads, size),
        mlp=Mlp(c.decoder_ffn_dim, configs.act(c.activation_function)),
        norm=norm,
    )
    return Decoder(
        vocab=c.vocab_size,
        width=c.d_model,
        blocks=(block,) * c.decoder_layers,
        norm=norm,
        tied=c.tie_word_embeddings,
        positions=Positions(c.max_target_positions),
        encoder_input=EncoderInput(c.max_source_positions),
    )


def _speech(context: Context) -> SpeechProcessor:
    from quire_plugins.audio.whisper_inputs import SpeechProcessor

    return SpeechProcessor(context)


def _rules(context: Context) -> WhisperLogitsProcessor:
    from quire_plugins.audio.whisper_rules import WhisperLogitsProcessor

    return WhisperLogitsProcessor(context, ARCHITECTURE)


def _is_whisper(context: Context) -> bool:
    return ARCHITECTURE in (context.config.get("architectures") or ())


def _asks(context: Context) -> WhisperPrompts:
    from quire_plugins.audio.whisper_speech import WhisperPrompts

    return WhisperPrompts(context)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`WhisperForConditionalGeneration`, the only architecture."""
    yield Architecture(ARCHITECTURE, decoder, NAMES, tower=whisper_encoder.encoder)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Speech before each prompt."""
    yield InputMapper("whisper/audio", ARCHITECTURE, "audio", _speech)


@hookimpl
def quire_logits_processors() -> Iterable[LogitsProcessor]:
    """Suppressed tokens and the rules of timestamps."""
    fields = {"return_timestamps": bool, "suppress_tokens": list, "begin_suppress_tokens": list}
    yield LogitsProcessor("whisper", fields, _rules, has_defaults=_is_whisper)


@hookimpl
def quire_transcribers() -> Iterable[Transcriber]:
    """Prompts for transcription and translation."""
    yield Transcriber("whisper", ARCHITECTURE, _asks)


@hookimpl
def quire_demo_models() -> Iterable[DemoModel]:
    """A model of under a million parameters that transcribes digits of the repository's speech synthesizer."""
    yield DemoModel(
        name="demo-whisper",
        summary="small speech model trained on digits that this repository synthesises",
        folder=lambda: DEMOS / "demo_whisper",
    )

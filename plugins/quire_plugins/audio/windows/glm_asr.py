"""GLM-ASR: Whisper's encoder with rotary positions on windows of audio, four tokens to an embedding, in the prompt of a
Llama.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import (
    Architecture,
    AudioTower,
    Block,
    Context,
    Decoder,
    InputMapper,
    LayerNorm,
    Mlp,
    Projector,
    Rope,
    RowAttention,
    SpeechTask,
    Transcriber,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
)
from quire_plugins.architectures import llama
from quire_plugins.audio.windows.voxtral import NAMES as VOXTRAL, GroupedAudioTower

if TYPE_CHECKING:
    from quire_plugins.audio.chat_transcriber import ChatTranscriber
    from quire_plugins.audio.windows.cut_windows import CutWindowProcessor

NAME = "GlmAsrForConditionalGeneration"
MARKER = "<|pad|>"
GROUP = 4
"""Tokens of an embedding; config.json does not say it, but how large they are together."""

NAMES = (
    VOXTRAL
    | WeightsMapper((("mlp.fc1", "mlp.up"), ("mlp.fc2", "mlp.down")))
    | WeightsMapper((("audio_tower.norm", "tower.encoder.norm"),)).and_under("model")
)


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for an unknown one."""
    configs.check_model_type("language model", c.text_config, "llama")
    return replace(llama.decoder(c.text_config), tied=c.tie_word_embeddings)


def tower(c: Any) -> GroupedAudioTower:
    """Encoder and projector. Raises CheckpointError for an unknown encoder, or sizes that do not fit."""
    a = c.audio_config
    configs.check_model_type("audio encoder", a, "glmasr_encoder")
    if a.intermediate_size != GROUP * a.hidden_size or a.max_position_embeddings % GROUP:
        raise CheckpointError(
            f"config.json: `audio_config.intermediate_size` {a.intermediate_size} must be {GROUP} times `hidden_size`"
            f" {a.hidden_size}, and `max_position_embeddings` {a.max_position_embeddings} a multiple of {GROUP}."
        )
    size = a.hidden_size // a.num_attention_heads
    rope = Rope.from_config(a, size)
    attention = RowAttention(a.num_attention_heads, a.num_key_value_heads, size, rope)
    block = Block(attention, Mlp(a.intermediate_size, configs.act(a.hidden_act)), LayerNorm(1e-5))
    encoder = AudioTower(
        mels=a.num_mel_bins,
        width=a.hidden_size,
        count=a.max_position_embeddings,
        blocks=(block,) * a.num_hidden_layers,
        norm=LayerNorm(1e-5),
        rope=rope,
    )
    projector = Projector(a.intermediate_size, configs.act(c.projector_hidden_act), expansion=2)
    return GroupedAudioTower(encoder, GROUP, projector)


def _audio(context: Context) -> CutWindowProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.windows.cut_windows import CutWindowProcessor

    config = parsed(context)
    return CutWindowProcessor(context, config.audio_token_id, tower(config), MARKER, padded=True)


def _instruction(task: SpeechTask) -> str:
    return "Please transcribe this audio into text"


def _asks(context: Context) -> ChatTranscriber:
    from quire_plugins.audio.chat_transcriber import ChatTranscriber

    return ChatTranscriber(
        context, _instruction, {}, lambda words: [{"type": "audio"}, {"type": "text", "text": words}]
    )


@hookimpl
def quire_transcribers() -> Iterable[Transcriber]:
    """Transcription of any language that the model knows."""
    yield Transcriber("glm-asr", NAME, _asks, translates=False)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`GlmAsrForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Audio of any length."""
    yield InputMapper("glm-asr/audio", NAME, "audio", _audio, MARKER)

"""Audio Flamingo 3: Whisper's encoder, pooled, on windows of audio, in the prompt of a Qwen 2."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.plugin import Architecture, Context, Decoder, InputMapper, Projector, config_fields as configs, hookimpl
from quire_plugins.architectures import qwen
from quire_plugins.audio import whisper_encoder
from quire_plugins.audio.windows.voxtral import NAMES, GroupedAudioTower

if TYPE_CHECKING:
    from quire_plugins.audio.windows.cut_windows import CutWindowProcessor

NAME = "AudioFlamingo3ForConditionalGeneration"
MARKER = "<sound>"


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for an unknown one."""
    configs.check_model_type("language model", c.text_config, "qwen2")
    return replace(qwen.qwen2(c.text_config), tied=False)


def tower(c: Any) -> GroupedAudioTower:
    """Encoder and projector. Raises CheckpointError for an unknown encoder."""
    configs.check_model_type("audio encoder", c.audio_config, "audioflamingo3_encoder")
    encoder = replace(whisper_encoder.encoder(c.audio_config), pooled=True)
    act = configs.act(c.projector_hidden_act)
    return GroupedAudioTower(encoder, 1, Projector(encoder.width, act, bias=c.projector_bias))


def _audio(context: Context) -> CutWindowProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.windows.cut_windows import CutWindowProcessor

    config = parsed(context)
    return CutWindowProcessor(context, config.audio_token_id, tower(config), MARKER, padded=False)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`AudioFlamingo3ForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Audio of any length."""
    yield InputMapper("audio-flamingo/audio", NAME, "audio", _audio, MARKER)

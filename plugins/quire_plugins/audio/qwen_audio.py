"""Qwen2-Audio: embeddings of Whisper's encoder in the prompt of a Qwen 2."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    AudioTower,
    Context,
    Decoder,
    InputMapper,
    Option,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures import qwen
from quire_plugins.audio import whisper_encoder

if TYPE_CHECKING:
    from quire_plugins.audio.qwen_audio_inputs import AudioProcessor

NAME = "Qwen2AudioForConditionalGeneration"
MARKER = "<|AUDIO|>"
"""Placeholder in chat templates, between <|audio_bos|> and <|audio_eos|>."""

_TOWER = whisper_encoder.names("audio_tower", "tower") | names.WeightsMapper(
    (("multi_modal_projector.linear", "tower.projector"),)
)

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for an unknown one."""
    configs.check_model_type("language model", c.text_config, "qwen2")
    return replace(qwen.qwen2(c.text_config), tied=False)


def tower(c: Any) -> AudioTower:
    """Encoder and projection. Raises CheckpointError for an unknown encoder."""
    configs.check_model_type("audio encoder", c.audio_config, "qwen2_audio_encoder")
    return replace(whisper_encoder.encoder(c.audio_config), pooled=True, projected=True)


def _audio(context: Context) -> AudioProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.qwen_audio_inputs import AudioProcessor

    config = parsed(context)
    return AudioProcessor(context, config.audio_token_id, tower(config))


@hookimpl
def quire_options() -> Iterable[Option]:
    """How to treat audio that is too long."""
    yield Option("cut", bool, False, "truncate audio that is too long for the model, instead of refusing it")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Qwen2AudioForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Audio; chat templates write the placeholder."""
    yield InputMapper("qwen2-audio/audio", NAME, "audio", _audio, MARKER)

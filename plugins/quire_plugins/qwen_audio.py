"""Qwen2-Audio: sound heard by Whisper's encoder becomes rows of embeddings in a prompt of a Qwen 2."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire import Architecture, InputMapper, Option, hookimpl
from quire.errors import CheckpointError
from quire.records import Context
from quire_models import Decoder, names
from quire_models.audio import AudioTower
from quire_plugins import qwen, whisper_encoder

if TYPE_CHECKING:
    from quire_plugins.qwen_audio_inputs import MapsAudio

NAME = "Qwen2AudioForConditionalGeneration"
MARKER = "<|AUDIO|>"
"""What templates write where audio stands, between <|audio_bos|> and <|audio_eos|>."""

_HEARING = whisper_encoder.names("audio_tower", "tower") | names.Names(
    (("multi_modal_projector.linear", "tower.projector"),)
)

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _HEARING.and_under("model")


def decoder(c: Any) -> Decoder:
    """The text half. Raises CheckpointError for a language model that is not known here."""
    kind = c.text_config.model_type
    if kind != "qwen2":
        raise CheckpointError(f"The text half of the model is {kind!r}; what can be built is qwen2.")
    return replace(qwen.qwen2(c.text_config), tied=False)


def tower(c: Any) -> AudioTower:
    """The encoder, and the matrix after it. Raises CheckpointError for an encoder that is not known here."""
    kind = c.audio_config.model_type
    if kind != "qwen2_audio_encoder":
        raise CheckpointError(f"The model hears with {kind!r}; what can be built is qwen2_audio_encoder.")
    return replace(whisper_encoder.encoder(c.audio_config), pooled=True, projected=True)


def _audio(context: Context) -> MapsAudio:
    from quire_plugins.model_config import parsed
    from quire_plugins.qwen_audio_inputs import MapsAudio

    config = parsed(context)
    return MapsAudio(context, config.audio_token_id, tower(config))


@hookimpl
def quire_options() -> Iterable[Option]:
    """What becomes of audio that is too long."""
    yield Option("cut", bool, False, "of audio longer than the model hears take the beginning, instead of refusing it")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """One."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Audio; the template writes the marker."""
    yield InputMapper("qwen2-audio/audio", NAME, "audio", _audio, MARKER)

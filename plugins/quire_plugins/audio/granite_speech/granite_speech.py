"""Granite Speech: conformer and Q-Former in the prompt of a Granite, whose LoRA is for prompts with audio."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Context,
    Decoder,
    InputMapper,
    SpeechTask,
    Transcriber,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures import granite
from quire_plugins.audio.granite_speech import conformer, query_windows
from quire_plugins.audio.granite_speech.conformer import Conformer
from quire_plugins.audio.granite_speech.query_windows import QueryWindows

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.audio.chat_transcriber import ChatTranscriber
    from quire_plugins.audio.granite_speech.inputs import GraniteSpeechProcessor

NAME = "GraniteSpeechForConditionalGeneration"
MARKER = "<|audio|>"

_TOWER = conformer.NAMES | query_windows.NAMES

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")


@dataclass(frozen=True)
class QueryTower:
    """A conformer, whose hidden states queries read window by window.

    scale: factor of the rows; the language model multiplies all its inputs.
    """

    encoder: Conformer
    projector: QueryWindows
    scale: float

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.audio.granite_speech.tower import QueryTowerModule

        return QueryTowerModule(width, self, builder)


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for an unknown one."""
    configs.check_model_type("language model", c.text_config, "granite")
    return replace(granite.decoder(c.text_config), tied=c.tie_word_embeddings)


def tower(c: Any) -> QueryTower:
    """Encoder and projector. Raises CheckpointError for sizes that do not fit."""
    projector = query_windows.query_windows(c)
    return QueryTower(conformer.conformer(c.encoder_config), projector, c.text_config.embedding_multiplier)


def _own_adapters(c: Any) -> Mapping[str, str]:
    """The LoRA beside the model's weights, which prompts with audio use."""
    return {"audio": ""} if c.has_lora_adapter else {}


def _audio(context: Context) -> GraniteSpeechProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.granite_speech.inputs import GraniteSpeechProcessor

    config = parsed(context)
    return GraniteSpeechProcessor(context, config.audio_token_index, tower(config))


LANGUAGES = {"en": "English", "fr": "French", "de": "German", "pt": "Portuguese", "es": "Spanish", "ja": "Japanese"}


def _instruction(task: SpeechTask) -> str:
    if task.translate:
        return f"translate the speech to {LANGUAGES[task.to_language or 'en']}"
    return "can you transcribe the speech into a written format?"


def _asks(context: Context) -> ChatTranscriber:
    from quire_plugins.audio.chat_transcriber import ChatTranscriber

    return ChatTranscriber(context, _instruction, LANGUAGES, lambda words: f"{MARKER}{words}")


@hookimpl
def quire_transcribers() -> Iterable[Transcriber]:
    """Transcription, and translation into the languages of the model."""
    yield Transcriber("granite-speech", NAME, _asks)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`GraniteSpeechForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, decoder, NAMES, tower, modality_adapters=_own_adapters)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Audio of any length."""
    yield InputMapper("granite-speech/audio", NAME, "audio", _audio, MARKER)

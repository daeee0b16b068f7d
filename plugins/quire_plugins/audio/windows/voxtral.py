"""Voxtral: Whisper's encoder on windows of audio, four tokens to an embedding, in the prompt of a Llama."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import (
    Architecture,
    AudioTower,
    Context,
    Decoder,
    InputMapper,
    Projector,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures import llama, mistral
from quire_plugins.audio import whisper_encoder

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.audio.windows.voxtral_inputs import WindowProcessor

NAME = "VoxtralForConditionalGeneration"
MARKER = "[AUDIO]"

TEXT = {"llama": llama.decoder, "mistral": mistral.decoder}
"""Language models by the `model_type` of `text_config`."""

_TOWER = whisper_encoder.names("audio_tower", "tower.encoder") | WeightsMapper(
    (
        ("multi_modal_projector.linear_1", "tower.projector.up"),
        ("multi_modal_projector.linear_2", "tower.projector.down"),
    )
)

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")


@dataclass(frozen=True)
class GroupedAudioTower:
    """An audio encoder; then every `group` tokens are concatenated and projected to one embedding.

    An item is a window of at most the encoder's longest input, as `quire_models.towers.audio` documents it.
    """

    encoder: AudioTower
    group: int
    projector: Projector

    @property
    def length(self) -> int:
        """Embeddings of a window."""
        return self.rows(2 * self.encoder.count)

    def rows(self, frames: int) -> int:
        """Embeddings of so many frames."""
        return self.encoder.rows(frames // 2) // self.group

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.audio.windows.voxtral_tower import GroupedAudioModule

        return GroupedAudioModule(width, self, builder)


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for an unknown one."""
    configs.check_model_type("language model", c.text_config, *TEXT)
    return replace(TEXT[c.text_config.model_type](c.text_config), tied=False)


def tower(c: Any) -> GroupedAudioTower:
    """Encoder and projector. Raises CheckpointError for an unknown encoder, or widths that do not divide."""
    a = c.audio_config
    configs.check_model_type("audio encoder", a, "voxtral_encoder")
    group, rest = divmod(a.intermediate_size, a.hidden_size)
    if rest or not group or a.max_source_positions % group:
        raise CheckpointError(
            f"config.json: `audio_config.intermediate_size` {a.intermediate_size} must be a multiple of `hidden_size`"
            f" {a.hidden_size}, and `max_source_positions` {a.max_source_positions} a multiple of their ratio."
        )
    projector = Projector(a.intermediate_size, configs.act(c.projector_hidden_act), bias=False)
    return GroupedAudioTower(whisper_encoder.encoder(a), group, projector)


def _audio(context: Context) -> WindowProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.windows.voxtral_inputs import WindowProcessor

    config = parsed(context)
    return WindowProcessor(context, config.audio_token_id, tower(config), MARKER)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`VoxtralForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Audio of any length."""
    yield InputMapper("voxtral/audio", NAME, "audio", _audio, MARKER)

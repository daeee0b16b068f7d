"""Phi-4 multimodal: images and audio in the prompt of a Phi-3, which has a LoRA for prompts with either.

Prompts with both use the LoRA of images, and another projector of audio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.plugin import Architecture, Context, InputMapper, WeightsMapper, hookimpl, weight_names
from quire_plugins.architectures import phi
from quire_plugins.audio.phi4 import hearing, seeing
from quire_plugins.audio.phi4.hearing import Hearing
from quire_plugins.audio.phi4.seeing import Seeing

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.audio.phi4.hearing_inputs import HearingProcessor
    from quire_plugins.audio.phi4.seeing_inputs import SeeingProcessor

NAME = "Phi4MultimodalForCausalLM"
IMAGE, AUDIO = "<|image|>", "<|audio|>"


@dataclass(frozen=True)
class SensesTower:
    """One encoder for images and one for audio."""

    seeing: Seeing
    hearing: Hearing

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.audio.phi4.tower import SensesModule

        return SensesModule(width, self, builder)


def names(c: Any) -> WeightsMapper:
    """Names of the language model and of both encoders."""
    return weight_names.LLAMA | seeing.names(c.vision_config) | hearing.NAMES


def tower(c: Any) -> SensesTower:
    """Both encoders. Raises CheckpointError for settings that cannot be built."""
    return SensesTower(seeing.seeing(c.vision_config), hearing.hearing(c.audio_config))


def _own_adapters(c: Any) -> Mapping[str, str]:
    return {"image": "vision-lora", "audio": "speech-lora"}


def _image(context: Context) -> SeeingProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.phi4.seeing_inputs import SeeingProcessor

    config = parsed(context)
    return SeeingProcessor(context, config.vision_config.image_token_id, seeing.seeing(config.vision_config))


def _audio(context: Context) -> HearingProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.phi4.hearing_inputs import HearingProcessor

    config = parsed(context)
    return HearingProcessor(context, config.audio_config.audio_token_id, hearing.hearing(config.audio_config))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Phi4MultimodalForCausalLM`, the only architecture."""
    yield Architecture(NAME, phi.decoder, names, tower, modality_adapters=_own_adapters)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images and audio; the chat template writes their markers with numbers."""
    yield InputMapper("phi4/image", NAME, "image", _image, IMAGE, numbered_marker="<|image_{number}|>")
    yield InputMapper("phi4/audio", NAME, "audio", _audio, AUDIO, numbered_marker="<|audio_{number}|>")

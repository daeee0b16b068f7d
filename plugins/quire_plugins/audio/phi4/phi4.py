"""Phi-4 multimodal: images and audio in the prompt of a Phi-3, which has a LoRA for prompts with either.

Prompts with both use the LoRA of images, and another projector of audio.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.plugin import Architecture, Context, InputMapper, WeightsMapper, hookimpl, weight_names
from quire_plugins.architectures import phi
from quire_plugins.audio.phi4 import audio_encoder, image_encoder
from quire_plugins.audio.phi4.audio_encoder import Phi4AudioTower
from quire_plugins.audio.phi4.image_encoder import Phi4ImageTower

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.audio.phi4.audio_inputs import Phi4AudioProcessor
    from quire_plugins.audio.phi4.image_inputs import Phi4ImageProcessor

NAME = "Phi4MultimodalForCausalLM"
IMAGE, AUDIO = "<|image|>", "<|audio|>"


@dataclass(frozen=True)
class Phi4Tower:
    """One encoder for images and one for audio."""

    images: Phi4ImageTower
    audio: Phi4AudioTower

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.audio.phi4.tower import Phi4TowerModule

        return Phi4TowerModule(width, self, builder)


def names(c: Any) -> WeightsMapper:
    """Names of the language model and of both encoders."""
    return weight_names.LLAMA | image_encoder.names(c.vision_config) | audio_encoder.NAMES


def tower(c: Any) -> Phi4Tower:
    """Both encoders. Raises CheckpointError for settings that cannot be built."""
    return Phi4Tower(image_encoder.tower(c.vision_config), audio_encoder.tower(c.audio_config))


def _own_adapters(c: Any) -> Mapping[str, str]:
    return {"image": "vision-lora", "audio": "speech-lora"}


def _image(context: Context) -> Phi4ImageProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.phi4.image_inputs import Phi4ImageProcessor

    config = parsed(context)
    return Phi4ImageProcessor(context, config.vision_config.image_token_id, image_encoder.tower(config.vision_config))


def _audio(context: Context) -> Phi4AudioProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.audio.phi4.audio_inputs import Phi4AudioProcessor

    config = parsed(context)
    return Phi4AudioProcessor(context, config.audio_config.audio_token_id, audio_encoder.tower(config.audio_config))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Phi4MultimodalForCausalLM`, the only architecture."""
    yield Architecture(NAME, phi.decoder, names, tower, modality_adapters=_own_adapters)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images and audio; the chat template writes their markers with numbers."""
    yield InputMapper("phi4/image", NAME, "image", _image, IMAGE, numbered_marker="<|image_{number}|>")
    yield InputMapper("phi4/audio", NAME, "audio", _audio, AUDIO, numbered_marker="<|audio_{number}|>")

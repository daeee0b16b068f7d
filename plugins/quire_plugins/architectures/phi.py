"""Phi-1, 1.5, 2, 3, 4 and Phi-3.5-vision. Phi-3: Llama with fused tensors, partial rotary embedding and LongRoPE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Context,
    Decoder,
    InputMapper,
    Option,
    headless,
    hookimpl,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama
from quire_plugins.architectures.dense import phi2
from quire_plugins.vision import phi as phi_vision

if TYPE_CHECKING:
    from quire_plugins.vision.phi_inputs import CropImageProcessor

VISION_ARCHITECTURE = "Phi3VForCausalLM"


def decoder(c: Any) -> Decoder:
    return with_attention(llama.decoder(c), window=c.sliding_window)


def multimodal_text(c: Any) -> Decoder:
    """Describes the language model of Phi-3.5-vision, for whose config transformers has no class."""
    return decoder(phi_vision.text_config(c))


def _pictures(context: Context) -> CropImageProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.phi_inputs import CropImageProcessor

    return CropImageProcessor(context, phi_vision.tower(parsed(context)))


@hookimpl
def quire_options() -> Iterable[Option]:
    """The largest number of crops per image."""
    yield Option("crops", int, 0, "maximum number of crops per image, up to 16; 0: as in the model's folder")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language models, the classes without a language head (LLAMA names cover the fused tensors), and
    Phi-3.5-vision.
    """
    yield Architecture(name="Phi3ForCausalLM", decoder=decoder, names=names.LLAMA)
    yield from headless("Phi3", decoder, names.LLAMA)
    yield Architecture(name="PhiForCausalLM", decoder=phi2.decoder, names=phi2.NAMES)
    yield from headless("Phi", phi2.decoder, phi2.NAMES)
    yield Architecture(VISION_ARCHITECTURE, multimodal_text, phi_vision.NAMES, tower=phi_vision.tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    yield InputMapper(
        "phi/image", VISION_ARCHITECTURE, "image", _pictures, "<|image|>", numbered_marker="<|image_{number}|>"
    )

"""Phi-3 and Phi-4: Llama with fused tensors in the checkpoint, partly rotary heads and LongRoPE; Phi-3.5-vision too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire import Architecture, InputMapper, Option, hookimpl
from quire.records import Context
from quire_models import Decoder, names, with_attention
from quire_models.headless import headless
from quire_plugins import llama, phi_vision

if TYPE_CHECKING:
    from quire_plugins.phi_vision_inputs import MapsCrops

SEEING = "Phi3VForCausalLM"


def decoder(c: Any) -> Decoder:
    """`Phi3Config` as parts."""
    return with_attention(llama.decoder(c), window=c.sliding_window)


def text_of_seeing(c: Any) -> Decoder:
    """The text half of a model that sees, whose config transformers has no class for."""
    return decoder(phi_vision.text_config(c))


def _pictures(context: Context) -> MapsCrops:
    from quire_plugins.model_config import parsed
    from quire_plugins.phi_vision_inputs import MapsCrops

    return MapsCrops(context, phi_vision.tower(parsed(context)))


@hookimpl
def quire_options() -> Iterable[Option]:
    """A bound."""
    yield Option("crops", int, 0, "most crops that a picture is cut into, up to 16; 0: as the model's folder says")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The language model, and the forms without its head; LLAMA names know its fused tensors. The one that sees."""
    yield Architecture(name="Phi3ForCausalLM", decoder=decoder, names=names.LLAMA)
    yield from headless("Phi3", decoder, names.LLAMA)
    yield Architecture(SEEING, text_of_seeing, phi_vision.NAMES, tower=phi_vision.tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Pictures."""
    yield InputMapper("phi/image", SEEING, "image", _pictures, "<|image|>", numbered="<|image_{number}|>")

"""Mistral 3 (Mistral Small 3.1 and later): Pixtral's encoder in front of a Mistral, four patches to an embedding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import Architecture, Context, InputMapper, RMSNorm, hookimpl, weight_names as names
from quire_plugins.vision import llava
from quire_plugins.vision.pixtral import encoder

if TYPE_CHECKING:
    from quire_plugins.vision.pixtral.inputs import PixtralImageProcessor

NAME = "Mistral3ForConditionalGeneration"

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | encoder.NAMES.and_under("model")


def tower(c: Any) -> encoder.PixtralTower:
    return encoder.tower(c, c.spatial_merge_size, RMSNorm(c.text_config.rms_norm_eps))


def _pictures(context: Context) -> PixtralImageProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.pixtral.inputs import PixtralImageProcessor

    c = parsed(context)
    return PixtralImageProcessor(context, c.image_token_id, c.vision_config.patch_size * c.spatial_merge_size)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Mistral3ForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, llava.decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images; chat templates write the placeholder."""
    yield InputMapper("mistral3/image", NAME, "image", _pictures, "[IMG]")

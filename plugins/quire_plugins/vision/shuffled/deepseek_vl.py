"""DeepSeek-VL: SigLIP on a square image, in the prompt of a Llama. Its tower joins no patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.plugin import Architecture, Context, InputMapper, Projector, WeightsMapper, hookimpl, weight_names as names
from quire_plugins.vision import clip, llava
from quire_plugins.vision.shuffled.shuffle import ShuffledTower

if TYPE_CHECKING:
    from quire_plugins.vision.shuffled.deepseek_vl_inputs import SquareProcessor

NAME = "DeepseekVLForConditionalGeneration"


def tower(c: Any) -> ShuffledTower:
    """Encoder and projector. Raises CheckpointError for another encoder than SigLIP."""
    vision = clip.encoder(c.vision_config, normed=True, kinds=(clip.SIGLIP,))
    return ShuffledTower(vision=vision, merge=1, projector=Projector(vision.features, "gelu"))


_TOWER = clip.names("vision_model", "tower.vision", normed=True) | WeightsMapper(
    (("aligner.linear1", "tower.projector.up"), ("aligner.linear2", "tower.projector.down"))
)

NAMES = names.LLAMA | names.LANGUAGE_MODEL | _TOWER.and_under("model")


def _pictures(context: Context) -> SquareProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.shuffled.deepseek_vl_inputs import SquareProcessor

    config = parsed(context)
    return SquareProcessor(context, config, tower(config).tokens)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`DeepseekVLForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, llava.decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images; chat templates write the placeholder."""
    yield InputMapper("deepseek-vl/image", NAME, "image", _pictures, "<image_placeholder>")

"""InternVL: InternViT on the tiles of an image, or the frames of a video, in the prompt of a Qwen or Llama."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import (
    Architecture,
    Context,
    InputMapper,
    LayerNorm,
    Projector,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.vision import llava
from quire_plugins.vision.shuffled import internvl_encoder as internvit
from quire_plugins.vision.shuffled.shuffle import ShuffledTower, check_squares

if TYPE_CHECKING:
    from quire_plugins.vision.shuffled.internvl_inputs import InternTileProcessor
    from quire_plugins.vision.shuffled.video_inputs import NumberedFrameProcessor

NAME = "InternVLForConditionalGeneration"

MAX_TILES = 13
"""Of an image: twelve, and the image as a whole."""

_TOWER = internvit.NAMES | WeightsMapper(
    (
        ("multi_modal_projector.layer_norm", "tower.norm"),
        ("multi_modal_projector.linear_1", "tower.projector.up"),
        ("multi_modal_projector.linear_2", "tower.projector.down"),
    )
)

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")


def tower(c: Any) -> ShuffledTower:
    """Encoder and projector. Raises CheckpointError if patches and `downsample_ratio` do not match."""
    layer = c.vision_feature_layer
    if not isinstance(layer, int):
        raise CheckpointError(f"config.json: `vision_feature_layer` must be one layer, got {layer!r:.60}.")
    vision = internvit.encoder(c.vision_config, layer, c.vision_feature_select_strategy == "default")
    merge = int(1 / c.downsample_ratio) if c.downsample_ratio > 0 else 0
    check_squares(vision, merge, "downsample_ratio")
    return ShuffledTower(
        vision=vision,
        merge=merge,
        norm=LayerNorm(),
        projector=Projector(vision.features * merge**2, configs.act(c.projector_hidden_act)),
        most_tiles=MAX_TILES,
    )


def _pictures(context: Context) -> InternTileProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.shuffled.internvl_inputs import InternTileProcessor

    config = parsed(context)
    found = tower(config)
    return InternTileProcessor(context, config.image_token_id, found.tokens, found.vision.patches.tile)


def _videos(context: Context) -> NumberedFrameProcessor:
    from quire_plugins.vision.shuffled.video_inputs import NumberedFrameProcessor

    return NumberedFrameProcessor(context, _pictures(context))


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`InternVLForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, llava.decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images and videos; chat templates write the placeholders."""
    yield InputMapper("internvl/image", NAME, "image", _pictures, "<IMG_CONTEXT>")
    yield InputMapper("internvl/video", NAME, "video", _videos)

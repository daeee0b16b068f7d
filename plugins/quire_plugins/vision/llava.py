"""LLaVA: CLIP or SigLIP embeddings in the prompt of a Llama, Mistral or Qwen.

LLaVA 1.5 scales an image to one square, or with Pixtral's encoder sees it as it is; LLaVA-NeXT and LLaVA-OneVision add
tiles; LLaVA-OneVision accepts videos.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire import Architecture, DemoModel, InputMapper, Option, hookimpl
from quire.errors import CheckpointError
from quire.records import Context
from quire_demos import FOLDER as DEMOS
from quire_models import Decoder
from quire_models.loading import config_fields as configs, weight_names as names
from quire_models.parts.vision import Projector, VisionEncoder
from quire_plugins.architectures import llama, mistral, qwen
from quire_plugins.vision import clip
from quire_plugins.vision.pixtral import encoder as pixtral

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.vision.llava_inputs import (
        LlavaImageProcessor,
        LlavaVideoProcessor,
        SingleImageProcessor,
        TiledImageProcessor,
    )
    from quire_plugins.vision.llava_tiles import Tiling
    from quire_plugins.vision.pixtral.inputs import PixtralImageProcessor

SINGLE, NEXT, ONEVISION = (f"Llava{form}ForConditionalGeneration" for form in ("", "Next", "Onevision"))

TEXT = {"llama": llama.decoder, "mistral": mistral.decoder, "qwen2": qwen.qwen2, "qwen3": qwen.qwen3}
"""Language models by the `model_type` of `text_config`."""

_TOWER = clip.names("vision_tower", "tower.vision") | names.WeightsMapper(
    (
        ("multi_modal_projector.linear_1", "tower.projector.up"),
        ("multi_modal_projector.linear_2", "tower.projector.down"),
        ("image_newline", "tower.newline"),
    )
)

PIXTRAL_NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | pixtral.NAMES.and_under("model")

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for an unknown one."""
    configs.check_model_type("language model", c.text_config, *TEXT)
    return replace(TEXT[c.text_config.model_type](c.text_config), tied=c.tie_word_embeddings)


@dataclass(frozen=True)
class TiledVisionTower:
    """Tiles through an encoder and a projector. newline: whether a learned embedding ends each line. most_tiles: per
    image.
    """

    vision: VisionEncoder
    projector: Projector
    newline: bool = False
    most_tiles: int = 1

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        from quire_plugins.vision.llava_tower import TiledVisionModule

        return TiledVisionModule(width, self, builder)


def tower(c: Any) -> TiledVisionTower:
    """Encoder and projector of LLaVA 1.5."""
    layers = c.vision_feature_layer if isinstance(c.vision_feature_layer, list | tuple) else [c.vision_feature_layer]
    vision = clip.encoder(c.vision_config, tuple(layers), c.vision_feature_select_strategy == "default")
    return TiledVisionTower(
        vision, Projector(vision.features, configs.act(c.projector_hidden_act), c.multimodal_projector_bias)
    )


def any_tower(c: Any) -> TiledVisionTower | pixtral.PixtralTower:
    """The tower of `LlavaForConditionalGeneration`, by its encoder."""
    return pixtral.tower(c) if c.vision_config.model_type == pixtral.PIXTRAL else tower(c)


def any_names(c: Any) -> names.WeightsMapper:
    """Names of `LlavaForConditionalGeneration`, by its encoder."""
    return PIXTRAL_NAMES if c.vision_config.model_type == pixtral.PIXTRAL else NAMES


def tiled_tower(c: Any) -> TiledVisionTower:
    """Encoder and projector of LLaVA-NeXT and LLaVA-OneVision."""
    return replace(tower(c), newline=True, most_tiles=tiling(c).most_tiles)


def tiling(c: Any) -> Tiling:
    """How images are cut into tiles. Raises CheckpointError for an unknown setting."""
    from quire_plugins.vision.llava_tiles import Tiling

    vision = tower(c).vision
    ratio = configs.optional(c, "vision_aspect_ratio", None)  # LLaVA-NeXT has none: a grid may be as large as it is
    if ratio is not None and not (ratio.startswith("anyres_max_") and ratio.removeprefix("anyres_max_").isdecimal()):
        raise CheckpointError(f"config.json: `vision_aspect_ratio` must be anyres_max_ and a number, got {ratio!r}.")
    return Tiling(
        tile=vision.patches.tile,
        side=vision.patches.side,
        tokens=vision.tokens,
        sizes=c.image_grid_pinpoints,
        most=None if ratio is None else int(ratio.removeprefix("anyres_max_")),
    )


def _pictures(context: Context) -> LlavaImageProcessor | PixtralImageProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.llava_inputs import LlavaImageProcessor
    from quire_plugins.vision.pixtral.inputs import PixtralImageProcessor

    config = parsed(context)
    if config.vision_config.model_type == pixtral.PIXTRAL:
        return PixtralImageProcessor(context, config.image_token_id, config.vision_config.patch_size)
    return LlavaImageProcessor(context, config, tower(config).vision.tokens)


def _tiled_pictures(context: Context) -> TiledImageProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.llava_inputs import TiledImageProcessor

    config = parsed(context)
    return TiledImageProcessor(context, config, tiling(config))


def _pictures_alone(context: Context) -> SingleImageProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.llava_inputs import SingleImageProcessor

    config = parsed(context)
    return SingleImageProcessor(context, config, tiling(config))


def _videos(context: Context) -> LlavaVideoProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.llava_inputs import LlavaVideoProcessor

    config = parsed(context)
    return LlavaVideoProcessor(context, config, tiling(config))


@hookimpl
def quire_options() -> Iterable[Option]:
    """The largest number of video frames."""
    yield Option("frames", int, 32, "maximum number of frames sampled from a video")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """LLaVA 1.5, LLaVA-NeXT and LLaVA-OneVision."""
    yield Architecture(SINGLE, decoder, any_names, tower=any_tower)
    yield Architecture(NEXT, decoder, NAMES, tower=tiled_tower)
    yield Architecture(ONEVISION, decoder, NAMES, tower=tiled_tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images for all three, videos for LLaVA-OneVision."""
    yield InputMapper("llava/image", SINGLE, "image", _pictures)
    yield InputMapper("llava-next/image", NEXT, "image", _tiled_pictures)
    yield InputMapper("llava-onevision/image", ONEVISION, "image", _pictures_alone)
    yield InputMapper("llava-onevision/video", ONEVISION, "video", _videos)


@hookimpl
def quire_demo_models() -> Iterable[DemoModel]:
    """A model of under two million parameters for questions about images of coloured shapes and digits."""
    yield DemoModel(
        name="demo-llava",
        summary="small vision model trained on pictures that this repository draws",
        folder=lambda: DEMOS / "demo_llava",
    )

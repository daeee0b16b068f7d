"""LLaVA: a picture seen by CLIP or SigLIP becomes rows of embeddings in a prompt of a Llama, Mistral or Qwen.

LLaVA 1.5 sees a picture as one square; LLaVA-NeXT and LLaVA-OneVision also in tiles; the last takes videos too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire import Architecture, DemoModel, InputMapper, Option, hookimpl
from quire.errors import CheckpointError
from quire.records import Context
from quire_models import Decoder, configs, names
from quire_models.vision import Projector, VisionEncoder
from quire_plugins import clip, llama, mistral, qwen

if TYPE_CHECKING:
    from torch import nn

    from quire_models.make import Make
    from quire_plugins.llava_inputs import MapsPictures, MapsPicturesAlone, MapsTiledPictures, MapsVideos
    from quire_plugins.llava_tiles import Tiling

SINGLE, NEXT, ONEVISION = (f"Llava{form}ForConditionalGeneration" for form in ("", "Next", "Onevision"))

TEXT = {"llama": llama.decoder, "mistral": mistral.decoder, "qwen2": qwen.qwen2, "qwen3": qwen.qwen3}
"""What language models are made of, by the `model_type` of `text_config`."""

_SEEING = clip.names("vision_tower", "tower.vision") | names.Names(
    (
        ("multi_modal_projector.linear_1", "tower.projector.up"),
        ("multi_modal_projector.linear_2", "tower.projector.down"),
        ("image_newline", "tower.newline"),
    )
)

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _SEEING.and_under("model")


def decoder(c: Any) -> Decoder:
    """The text half. Raises CheckpointError for a language model that is not known here."""
    kind = c.text_config.model_type
    if kind not in TEXT:
        raise CheckpointError(f"The text half of the model is {kind!r}; what can be built is {', '.join(TEXT)}.")
    return replace(TEXT[kind](c.text_config), tied=c.tie_word_embeddings)


@dataclass(frozen=True)
class PictureTower:
    """Tiles through an encoder and a projector; newline: whether a learned row ends lines. most_tiles: of a picture."""

    vision: VisionEncoder
    projector: Projector
    newline: bool = False
    most_tiles: int = 1

    def build(self, width: int, make: Make) -> nn.Module:
        """A tower; see `llava_tower.TilesToRows` for the tensors of a medium."""
        from quire_plugins.llava_tower import TilesToRows

        return TilesToRows(width, self, make)


def tower(c: Any) -> PictureTower:
    """Encoder and projector of LLaVA 1.5."""
    layers = c.vision_feature_layer if isinstance(c.vision_feature_layer, list | tuple) else [c.vision_feature_layer]
    vision = clip.encoder(c.vision_config, tuple(layers), c.vision_feature_select_strategy == "default")
    return PictureTower(
        vision, Projector(vision.features, configs.act(c.projector_hidden_act), c.multimodal_projector_bias)
    )


def tiled_tower(c: Any) -> PictureTower:
    """The same of LLaVA-NeXT and LLaVA-OneVision."""
    return replace(tower(c), newline=True, most_tiles=tiling(c).most_tiles)


def tiling(c: Any) -> Tiling:
    """How pictures are cut. Raises CheckpointError for a setting that there is not."""
    from quire_plugins.llava_tiles import Tiling

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


def _pictures(context: Context) -> MapsPictures:
    from quire_plugins.llava_inputs import MapsPictures
    from quire_plugins.model_config import parsed

    config = parsed(context)
    return MapsPictures(context, config, tower(config).vision.tokens)


def _tiled_pictures(context: Context) -> MapsTiledPictures:
    from quire_plugins.llava_inputs import MapsTiledPictures
    from quire_plugins.model_config import parsed

    config = parsed(context)
    return MapsTiledPictures(context, config, tiling(config))


def _pictures_alone(context: Context) -> MapsPicturesAlone:
    from quire_plugins.llava_inputs import MapsPicturesAlone
    from quire_plugins.model_config import parsed

    config = parsed(context)
    return MapsPicturesAlone(context, config, tiling(config))


def _videos(context: Context) -> MapsVideos:
    from quire_plugins.llava_inputs import MapsVideos
    from quire_plugins.model_config import parsed

    config = parsed(context)
    return MapsVideos(context, config, tiling(config))


@hookimpl
def quire_options() -> Iterable[Option]:
    """A bound."""
    yield Option("frames", int, 32, "most frames taken of a video")


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Three generations."""
    yield Architecture(SINGLE, decoder, NAMES, tower=tower)
    yield Architecture(NEXT, decoder, NAMES, tower=tiled_tower)
    yield Architecture(ONEVISION, decoder, NAMES, tower=tiled_tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Pictures for all, videos for the last."""
    yield InputMapper("llava/image", SINGLE, "image", _pictures)
    yield InputMapper("llava-next/image", NEXT, "image", _tiled_pictures)
    yield InputMapper("llava-onevision/image", ONEVISION, "image", _pictures_alone)
    yield InputMapper("llava-onevision/video", ONEVISION, "video", _videos)


@hookimpl
def quire_demo_models() -> Iterable[DemoModel]:
    """Under two million parameters; it answers questions about pictures of coloured shapes and digits."""
    yield DemoModel(
        name="demo-llava",
        summary="small vision model trained on pictures that this repository draws",
        folder=lambda: Path(__file__).parent / "demo_llava",
    )

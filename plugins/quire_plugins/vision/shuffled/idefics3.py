"""Idefics 3 and SmolVLM: SigLIP on an image as a whole and on its tiles, in the prompt of a Llama."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.plugin import Architecture, Context, InputMapper, WeightsMapper, hookimpl, weight_names as names
from quire_plugins.vision import clip, llava
from quire_plugins.vision.shuffled.shuffle import ShuffledTower, check_squares

if TYPE_CHECKING:
    from torch import Tensor

    from quire_plugins.vision.shuffled.idefics3_inputs import TaggedTileProcessor
    from quire_plugins.vision.shuffled.video_inputs import TimedFrameProcessor

IDEFICS3, SMOLVLM = "Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"

ENCODERS = ("idefics3_vision", "smolvlm_vision")
"""`model_type`s of the encoder's config."""

MAX_TILES = 17
"""Of an image whose longer side is four tiles, and the image as a whole."""


def tower(c: Any) -> ShuffledTower:
    """Encoder and projection. Raises CheckpointError if patches and `scale_factor` do not match."""
    vision = clip.encoder(c.vision_config, normed=True, kinds=ENCODERS)
    check_squares(vision, c.scale_factor, "scale_factor")
    return ShuffledTower(vision=vision, merge=c.scale_factor, most_tiles=MAX_TILES)


def _placed(positions: Tensor, _: Any) -> Tensor:
    """The rows of the position table that transformers gives the patches of a tile, [side², width].

    It finds a patch's row by comparing fractions in float32, which is not the patch's own row for every `side`.
    """
    import torch

    side = round(len(positions) ** 0.5)
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    fractions = (torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))).clamp(max=1.0 - 1e-6)
    found = torch.bucketize(fractions, bounds, right=True).to(positions.device)
    return positions[(found[:, None] * side + found).reshape(-1)]


_TOWER = clip.names("model.vision_model", "tower.vision", normed=True)

NAMES = (
    names.LLAMA
    | replace(_TOWER, transforms=(*_TOWER.transforms, ("tower.vision.patches.positions", _placed)))
    | WeightsMapper(
        (
            ("model.text_model.embed_tokens", "embed"),
            ("model.text_model.layers", "blocks"),
            ("model.text_model.norm", "norm"),
            ("model.connector.modality_projection.proj", "tower.project"),
        )
    )
)


def _pictures(context: Context) -> TaggedTileProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.shuffled.idefics3_inputs import TaggedTileProcessor

    config = parsed(context)
    return TaggedTileProcessor(context, config, tower(config).tokens)


def _videos(context: Context) -> TimedFrameProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.shuffled.video_inputs import TimedFrameProcessor

    return TimedFrameProcessor(context, tower(parsed(context)).tokens)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both have the same parts."""
    yield Architecture(IDEFICS3, llava.decoder, NAMES, tower)
    yield Architecture(SMOLVLM, llava.decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images, and for SmolVLM videos; chat templates write the placeholders."""
    yield InputMapper("idefics3/image", IDEFICS3, "image", _pictures)
    yield InputMapper("smolvlm/image", SMOLVLM, "image", _pictures)
    yield InputMapper("smolvlm/video", SMOLVLM, "video", _videos)

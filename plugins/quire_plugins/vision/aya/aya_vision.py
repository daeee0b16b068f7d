"""Aya Vision: SigLIP on the tiles of an image, in the prompt of a Command."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Context,
    Decoder,
    InputMapper,
    LayerNorm,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures.dense import command
from quire_plugins.vision import clip
from quire_plugins.vision.shuffled.shuffle import ShuffledTower, check_squares

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.vision.aya.inputs import NumberedTileProcessor

NAME = "AyaVisionForConditionalGeneration"

MAX_TILES = 13
"""Of an image: twelve, and the image as a whole."""


@dataclass(frozen=True)
class GatedProjector:
    """down(silu(gate(x)) * up(x)) with biases, to the decoder's width. inputs, inner: sizes of x and of gate(x)."""

    inputs: int
    inner: int

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x [tokens, inputs], context) -> [tokens, width]."""
        from quire_plugins.vision.aya.projector import GatedProjectorModule

        return GatedProjectorModule(width, self, builder)


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError for another than Cohere 2.

    Its `logit_scale` applies to logits as in the language model alone; transformers leaves it out with images.
    """
    configs.check_model_type("language model", c.text_config, "cohere2")
    return replace(command.cohere2(c.text_config), tied=c.tie_word_embeddings)


def tower(c: Any) -> ShuffledTower:
    """Encoder and projector. Raises CheckpointError if patches and `downsample_factor` do not match."""
    layers = c.vision_feature_layer if isinstance(c.vision_feature_layer, list | tuple) else [c.vision_feature_layer]
    vision = clip.encoder(c.vision_config, tuple(layers), c.vision_feature_select_strategy == "default")
    merge = c.downsample_factor
    check_squares(vision, merge, "downsample_factor")
    inner = configs.optional(c, "alignment_intermediate_size", c.text_config.hidden_size)
    return ShuffledTower(
        vision=vision,
        merge=merge,
        norm=LayerNorm(c.adapter_layer_norm_eps),
        projector=GatedProjector(vision.features * merge**2, inner // 2),
        most_tiles=MAX_TILES,
    )


_TOWER = clip.names("vision_tower", "tower.vision") | WeightsMapper(
    (
        ("multi_modal_projector.layernorm", "tower.norm"),
        ("multi_modal_projector.linear_1", "tower.projector.up_gate"),
        ("multi_modal_projector.linear_2", "tower.projector.down"),
    )
)

NAMES = names.LLAMA.under("language_model") | names.LANGUAGE_MODEL | _TOWER.and_under("model")


def _pictures(context: Context) -> NumberedTileProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.aya.inputs import NumberedTileProcessor

    config = parsed(context)
    return NumberedTileProcessor(context, config, tower(config).tokens)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`AyaVisionForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images; chat templates write the placeholder."""
    yield InputMapper("aya-vision/image", NAME, "image", _pictures)

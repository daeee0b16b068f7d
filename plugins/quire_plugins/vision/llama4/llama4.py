"""Llama 4 with images: each in tiles and as a whole, in the prompt of a mixture of experts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import (
    Architecture,
    Block,
    Context,
    Decoder,
    InputMapper,
    LayerNorm,
    Mlp,
    Patches,
    Rope,
    RowAttention,
    VisionEncoder,
    WeightsMapper,
    hookimpl,
)
from quire_plugins.architectures.positions import llama4
from quire_plugins.vision.shuffled.shuffle import check_squares

if TYPE_CHECKING:
    from torch import Tensor, nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_plugins.vision.llama4.inputs import SeparatedTileProcessor

NAME = "Llama4ForConditionalGeneration"

MAX_TILES = 17
"""Of an image: sixteen, and the image as a whole."""


@dataclass(frozen=True, kw_only=True)
class AdaptedTower:
    """An encoder of tiles; squares of merge × merge patches through an MLP, act(down(act(up(x)))), and a matrix.

    rope: positions of patches by column and row, both from 1. inner, outputs: of the MLP. An item has `pixels`, floats
    [tiles, channels, tile, tile].
    """

    vision: VisionEncoder
    rope: Rope
    merge: int
    inner: int
    outputs: int

    @property
    def tokens(self) -> int:
        """Embeddings of a tile."""
        return (self.vision.patches.side // self.merge) ** 2

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.vision.llama4.tower import AdaptedVisionModule

        return AdaptedVisionModule(width, self, builder)


def decoder(c: Any) -> Decoder:
    """Describes the language model."""
    return replace(llama4.decoder(c.text_config), tied=c.tie_word_embeddings)


def tower(c: Any) -> AdaptedTower:
    """Describes `Llama4VisionConfig`. Raises CheckpointError if its sizes disagree."""
    v = c.vision_config
    merge = round(1 / v.pixel_shuffle_ratio) if v.pixel_shuffle_ratio > 0 else 0
    size = v.hidden_size // v.num_attention_heads
    rope = Rope(size, v.rope_parameters["rope_theta"], sections=(size // 4,) * 2, axial=True, interleaved=True)
    norm = LayerNorm(1e-5)
    attention = RowAttention(v.num_attention_heads, v.num_attention_heads, size, rope)
    vision = VisionEncoder(
        width=v.hidden_size,
        patches=Patches(v.image_size, v.patch_size, v.num_channels, class_token=True),
        blocks=(Block(attention, Mlp(v.intermediate_size, "gelu"), norm),) * v.num_hidden_layers,
        norm=norm,
        norm_out=norm,
        drop_first=True,
    )
    check_squares(vision, merge, "pixel_shuffle_ratio")
    sizes = v.hidden_size * merge**2, v.projector_input_dim, v.projector_output_dim
    if sizes != (v.intermediate_size, v.projector_output_dim, v.vision_output_dim):
        raise CheckpointError(
            f"config.json: in `vision_config`, `intermediate_size` must be {sizes[0]}, the size of a square of patches,"
            " and `projector_input_dim`, `projector_output_dim` and `vision_output_dim` must be equal."
        )
    return AdaptedTower(vision=vision, rope=rope, merge=merge, inner=sizes[1], outputs=sizes[2])


def _first(positions: Tensor, _: Any) -> Tensor:
    """Positions [tokens, width] whose last row is that of the class token, with that row first."""
    return positions.roll(1, 0)


NAMES = llama4.NAMES.under("language_model") | WeightsMapper(
    (
        ("vision_model.patch_embedding.linear", "tower.vision.patches.project"),
        ("vision_model.class_embedding", "tower.vision.patches.first"),
        ("vision_model.positional_embedding_vlm", "tower.vision.patches.positions"),
        ("vision_model.layernorm_pre", "tower.vision.norm"),
        ("vision_model.layernorm_post", "tower.vision.norm_out"),
        ("vision_model.model.layers", "tower.vision.blocks"),
        ("vision_model.vision_adapter.mlp.fc1", "tower.up"),
        ("vision_model.vision_adapter.mlp.fc2", "tower.down"),
        ("multi_modal_projector.linear_1", "tower.project"),
        ("fc1", "up"),
        ("fc2", "down"),
    ),
    transforms=(("tower.vision.patches.positions", _first),),
)


def _pictures(context: Context) -> SeparatedTileProcessor:
    from quire_plugins.architectures.model_config import parsed
    from quire_plugins.vision.llama4.inputs import SeparatedTileProcessor

    config = parsed(context)
    return SeparatedTileProcessor(context, config, tower(config).tokens)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """The model with its tower; `architectures.positions.llama4` has the language model alone."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images; chat templates write the placeholder."""
    yield InputMapper("llama4/image", NAME, "image", _pictures, "<|image|>")

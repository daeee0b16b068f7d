"""The image encoder of Phi-4 multimodal as parts, with the names of its tensors. This module is not a plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import Mlp, Projector, WeightsMapper, config_fields as configs, weight_names
from quire_plugins.vision import clip

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True, kw_only=True)
class Phi4ImageTower:
    """Crops through blocks whose tokens attend to patches that are no padding; squares of four through a projector.

    side: patches of a row, and of a column, of a crop of `crop` pixels. num_blocks: those that run.
    """

    crop: int
    patch: int
    channels: int
    width: int
    heads: int
    mlp: Mlp
    num_blocks: int
    eps: float
    projector: Projector

    @property
    def side(self) -> int:
        return self.crop // self.patch

    def rows(self, height: int, width: int) -> int:
        """Embeddings of an image whose crops have so many squares that are no padding: lines with an end each, of the
        crops and of the whole image, and one between them.
        """
        half = self.side // 2
        return height * (width + 1) + 1 + half * (half + 1)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower of images; its rows have this width."""
        from quire_plugins.audio.phi4.image_module import Phi4ImageModule

        return Phi4ImageModule(width, self, builder)


def tower(c: Any) -> Phi4ImageTower:
    """Describes `Phi4MultimodalVisionConfig`. Raises CheckpointError for sizes or a layer that cannot be built."""
    if c.crop_size != c.image_size or c.image_size // c.patch_size % 2:
        raise CheckpointError(
            f"config.json: `vision_config.crop_size` {c.crop_size} must be `image_size` {c.image_size}, with an even"
            f" number of patches of {c.patch_size} in a row."
        )
    count = c.num_hidden_layers + 1
    if not -count <= c.feature_layer < count:
        raise CheckpointError(f"config.json: `vision_config.feature_layer` must be from {-count} to {count - 1}.")
    return Phi4ImageTower(
        crop=c.image_size,
        patch=c.patch_size,
        channels=c.num_channels,
        width=c.hidden_size,
        heads=c.num_attention_heads,
        mlp=Mlp(c.intermediate_size, configs.act(c.hidden_act)),
        num_blocks=c.feature_layer % count,
        eps=c.layer_norm_eps,
        projector=Projector(c.hidden_size, "gelu"),
    )


_THEIRS, _OURS = "model.embed_tokens_extend.image_embed", "tower.images"
_ENCODER = f"{_THEIRS}.img_processor"


def names(c: Any) -> WeightsMapper:
    """The image encoder of a checkpoint of `Phi4MultimodalVisionConfig`; blocks that do not run are left out."""
    unused = range(c.feature_layer % (c.num_hidden_layers + 1), c.num_hidden_layers)
    return clip.BLOCKS | WeightsMapper(
        (
            (f"{_ENCODER}.embeddings.patch_embedding", f"{_OURS}.patches"),
            (f"{_ENCODER}.embeddings.position_embedding.weight", f"{_OURS}.positions"),
            (f"{_ENCODER}.encoder.layers", f"{_OURS}.blocks"),
            (f"{_THEIRS}.img_projection_up", f"{_OURS}.projector.up"),
            (f"{_THEIRS}.img_projection_down", f"{_OURS}.projector.down"),
            (f"{_THEIRS}.global_img_feature_extensor", f"{_OURS}.separator"),
            (f"{_THEIRS}.sub_img_feature_extensor", f"{_OURS}.newline"),
        ),
        transforms=(
            (f"{_OURS}.patches.weight", weight_names.as_matrix),
            (f"{_OURS}.separator", weight_names.as_vector),
            (f"{_OURS}.newline", weight_names.as_vector),
        ),
        ignored=(
            f"{_ENCODER}.head.*",
            f"{_ENCODER}.post_layernorm.*",
            *(f"{_ENCODER}.encoder.layers.{i}.*" for i in unused),
        ),
    )

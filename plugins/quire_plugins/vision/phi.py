"""The vision tower of Phi-3-vision and Phi-3.5-vision: CLIP on crops, and the names of its tensors.

This module is not a plugin: `quire_plugins.architectures.phi` has the architecture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire_models.loading import checkpoint, weight_names as names
from quire_models.parts.vision import Projector, VisionEncoder
from quire_plugins.vision import clip

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder

VIT_LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "num_channels": 3,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
"""Sizes of CLIP ViT-L/14 at 336 pixels, which config.json omits; `img_processor` may override them."""

LAYER = -2
"""Index of the layer whose hidden states are used."""

MAX_CROPS = 16
"""Default of crops per image, as in the published examples."""


_THEIRS = "model.vision_embed_tokens"
NAMES = (
    names.LLAMA
    | clip.names(f"{_THEIRS}.img_processor", "tower.vision")
    | names.WeightsMapper(
        (
            (f"{_THEIRS}.img_projection.0", "tower.projector.up"),
            (f"{_THEIRS}.img_projection.2", "tower.projector.down"),
            (f"{_THEIRS}.sub_GN", "tower.newline"),
            (f"{_THEIRS}.glb_GN", "tower.separator"),
        ),
        transforms=(("tower.newline", names.as_vector), ("tower.separator", names.as_vector)),
        ignored=(f"{_THEIRS}.wte.*",),
    )
)


@dataclass(frozen=True)
class CropsTower:
    """Crops through an encoder; squares of four neighbouring patches through a projector.

    whole_first: whether the whole image comes before its crops.
    """

    vision: VisionEncoder
    projector: Projector
    whole_first: bool = False

    @property
    def side(self) -> int:
        """Squares per row and per column of a crop."""
        return self.vision.patches.side // 2

    def rows(self, lines: int, columns: int) -> int:
        """Embeddings of an image with this many crops: squares, an end for each line, and one separator."""
        return (lines * columns + 1) * self.side**2 + (lines + 1) * self.side + 1

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        from quire_plugins.vision.phi_tower import CroppedVisionModule

        return CroppedVisionModule(width, self, builder)


def _mapping(part: Any) -> Mapping[str, Any]:
    """A part of the config that the checkpoint's own class keeps as a mapping."""
    return part if isinstance(part, Mapping) else checkpoint.as_mapping(part)


def tower(c: Any) -> CropsTower:
    """Encoder and projector. Raises CheckpointError for settings other than those of the published models."""
    from transformers import CLIPVisionConfig

    given, embedding = _mapping(c.img_processor), _mapping(c.embd_layer)
    order = embedding.get("hd_transform_order", "glb_sub")
    wanted = {"use_hd_transform": True, "with_learnable_separator": True, "projection_cls": "mlp"}
    for name, value in wanted.items():
        if embedding.get(name) != value:
            raise CheckpointError(
                f"config.json: `embd_layer.{name}` must be {value!r}; got {embedding.get(name)!r:.40}."
            )
    if order not in ("sub_glb", "glb_sub"):
        raise CheckpointError(
            f"config.json: `embd_layer.hd_transform_order` must be sub_glb or glb_sub, got {order!r:.40}."
        )
    sizes = {name: given.get(name, value) for name, value in VIT_LARGE.items()}
    sizes["hidden_size"] = given.get("image_dim_out", sizes["hidden_size"])
    if sizes["image_size"] // sizes["patch_size"] % 2:
        raise CheckpointError("config.json: `img_processor` must have an even number of patches in a row.")
    vision = clip.encoder(CLIPVisionConfig(**sizes), (given.get("layer_idx", LAYER),), drop_first=True)
    return CropsTower(vision, Projector(4 * vision.features, "gelu"), whole_first=order == "glb_sub")


def text_config(c: Any) -> Any:
    """The fields of the config that `phi.decoder` reads; these models call LongRoPE `su`."""
    values = checkpoint.as_mapping(c)
    scaling = dict(values.get("rope_scaling") or {})
    if scaling.get("type") == "su":
        scaling["type"] = "longrope"
    return SimpleNamespace(**{"sliding_window": None, **values, "rope_scaling": scaling})

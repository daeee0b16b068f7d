"""Pixtral's encoder as a tower, with the names of its tensors. Vision plugins use this module; it is not a plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import (
    Block,
    GatedMlp,
    Part,
    Projector,
    RMSNorm,
    Rope,
    RowAttention,
    WeightsMapper,
    config_fields as configs,
    weight_names as names,
)

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder

PIXTRAL = "pixtral"
"""`model_type` of the encoder's config."""


@dataclass(frozen=True, kw_only=True)
class PixtralTower:
    """Patches with 2-D rotary positions through blocks and a projector; each image attends to itself.

    patch: pixels of a patch's side. side: pixels of the largest image's side. layer: whose hidden states are projected
    (0 is the input of the first block). merge: patches of the side of a square that becomes one embedding, by
    `merge_norm` and a matrix; without `merge_norm` each patch becomes one. An item has `pixels`, floats [channels,
    height, width], both sides multiples of patch * merge.
    """

    channels: int
    patch: int
    side: int
    width: int
    blocks: tuple[Block, ...]
    norm: Part
    rope: Rope
    layer: int
    projector: Projector
    merge: int = 1
    merge_norm: Part | None = None

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.vision.pixtral.tower import PixtralModule

        return PixtralModule(width, self, builder)


def tower(c: Any, merge: int = 1, merge_norm: Part | None = None) -> PixtralTower:
    """Describes the encoder and projector of `LlavaConfig` or `Mistral3Config`.

    Raises CheckpointError for another encoder, or hidden states that do not exist.
    """
    v = c.vision_config
    configs.check_model_type("image encoder", v, PIXTRAL)
    size, norm = v.hidden_size // v.num_attention_heads, RMSNorm(1e-5)
    rope = Rope(size, v.rope_parameters["rope_theta"], sections=(size // 4,) * 2, axial=True, axial_turns=True)
    attention = RowAttention(v.num_attention_heads, v.num_attention_heads, size, rope, qkv_bias=False, out_bias=False)
    return PixtralTower(
        channels=v.num_channels,
        patch=v.patch_size,
        side=v.image_size,
        width=v.hidden_size,
        blocks=(Block(attention, GatedMlp(v.intermediate_size, configs.act(v.hidden_act)), norm),)
        * v.num_hidden_layers,
        norm=norm,
        rope=rope,
        layer=_layer(c.vision_feature_layer, v.num_hidden_layers + 1),
        projector=Projector(v.hidden_size, configs.act(c.projector_hidden_act), c.multimodal_projector_bias),
        merge=merge,
        merge_norm=merge_norm,
    )


def _layer(given: Any, count: int) -> int:
    """The one layer of `vision_feature_layer`, counted from the first of `count` hidden states."""
    layers = given if isinstance(given, list | tuple) else [given]
    if len(layers) != 1 or not -count <= layers[0] < count:
        raise CheckpointError(
            f"config.json: `vision_feature_layer` must be one layer from {-count} to {count - 1}, got {given!r:.60}."
        )
    return int(layers[0]) % count


NAMES = WeightsMapper(
    (
        ("vision_tower.patch_conv", "tower.patches"),
        ("vision_tower.ln_pre", "tower.norm"),
        ("vision_tower.transformer.layers", "tower.blocks"),
        ("attention", "attn"),
        ("attention_norm", "attn_in"),
        ("feed_forward", "mlp"),
        ("ffn_norm", "mlp_in"),
        ("multi_modal_projector.norm", "tower.merge_norm"),
        ("multi_modal_projector.patch_merger.merging_layer", "tower.merging"),
        ("multi_modal_projector.linear_1", "tower.projector.up"),
        ("multi_modal_projector.linear_2", "tower.projector.down"),
    ),
    transforms=(("tower.patches.weight", names.as_matrix),),
)
"""Encoder, merging and projector of a checkpoint."""

"""InternViT as parts, with the names of its tensors. This module is not a plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import (
    LayerNorm,
    Mlp,
    Part,
    Patches,
    RMSNorm,
    RowAttention,
    VisionEncoder,
    WeightsMapper,
    config_fields as configs,
    weight_names as names,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from quire_models.modules.builder import ModuleBuilder

NORMS = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}


@dataclass(frozen=True)
class LayerScaleBlock:
    """x += attn_scale * attention(norm(x)), x += mlp_scale * mlp(norm(x)), with learned scales [width]."""

    attn: RowAttention
    mlp: Part
    norm: Part

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, context) -> [tokens, width]."""
        from quire_plugins.vision.shuffled.internvl_block import LayerScaleModule

        return LayerScaleModule(width, self, builder)


def encoder(c: Any, layer: int, drop_first: bool) -> VisionEncoder:
    """Describes `InternVLVisionConfig`. layer, drop_first: which hidden states it returns.

    Raises CheckpointError for another encoder, images or patches that are not square, or a layer that does not exist.
    """
    configs.check_model_type("image encoder", c, "internvl_vision")
    (height, width), (patch, across) = c.image_size, c.patch_size
    if height != width or patch != across or c.norm_type not in NORMS or not c.use_absolute_position_embeddings:
        raise CheckpointError(
            "config.json: `vision_config` must have a square `image_size` and `patch_size`, a `norm_type` of layer_norm"
            " or rms_norm, and absolute position embeddings."
        )
    heads, size = c.num_attention_heads, c.hidden_size // c.num_attention_heads
    attention = RowAttention(
        heads, heads, size, qkv_bias=c.attention_bias, qk_norm=RMSNorm(1e-6) if c.use_qk_norm else None
    )
    norm = NORMS[c.norm_type](c.layer_norm_eps)
    found = VisionEncoder(
        width=c.hidden_size,
        patches=Patches(height, patch, c.num_channels, class_token=True, bias=True),
        blocks=(LayerScaleBlock(attention, Mlp(c.intermediate_size, configs.act(c.hidden_act)), norm),)
        * c.num_hidden_layers,
        norm_out=None if c.use_mean_pooling else LayerNorm(c.layer_norm_eps),
        layers=(layer,),
        drop_first=drop_first,
    )
    try:
        found.indices  # noqa: B018 - it checks them
    except ValueError as error:
        raise CheckpointError(f"config.json: `vision_feature_layer`: {error}.") from error
    return found


def _table(positions: Tensor, _: Any) -> Tensor:
    """[1, tokens, width] as [tokens, width]."""
    return positions[0]


NAMES = WeightsMapper(
    (
        ("vision_tower.embeddings.cls_token", "tower.vision.patches.first"),
        ("vision_tower.embeddings.position_embeddings", "tower.vision.patches.positions"),
        ("vision_tower.embeddings.patch_embeddings.projection", "tower.vision.patches.project"),
        ("vision_tower.encoder.layer", "tower.vision.blocks"),
        ("vision_tower.layernorm", "tower.vision.norm_out"),
        ("attention", "attn"),
        ("projection_layer", "o"),
        ("layernorm_before", "attn_in"),
        ("layernorm_after", "mlp_in"),
        ("lambda_1", "attn_scale"),
        ("lambda_2", "mlp_scale"),
        ("fc1", "up"),
        ("fc2", "down"),
    ),
    transforms=(
        ("tower.vision.patches.first", names.as_vector),
        ("tower.vision.patches.positions", _table),
        ("tower.vision.patches.project.weight", names.as_matrix),
    ),
    ignored=("*vision_tower.embeddings.mask_token",),
)

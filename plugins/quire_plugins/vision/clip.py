"""CLIP and SigLIP encoders as parts, with the names of their tensors. Vision plugins use this module; it is not a
plugin.
"""

from __future__ import annotations

from typing import Any

from quire.errors import CheckpointError
from quire_models import LayerNorm, Mlp, RowAttention
from quire_models.loading import config_fields as configs
from quire_models.loading.weight_names import WeightsMapper, as_matrix
from quire_models.parts.decoder import Block
from quire_models.parts.vision import Patches, VisionEncoder

CLIP, SIGLIP = "clip_vision_model", "siglip_vision_model"


def encoder(
    c: Any,
    layers: tuple[int, ...] = (-1,),
    drop_first: bool = False,
    normed: bool = False,
    kinds: tuple[str, ...] = (CLIP, SIGLIP),
) -> VisionEncoder:
    """Describes `CLIPVisionConfig` or `SiglipVisionConfig`. layers, drop_first: which hidden states it returns.

    normed: whether the output of the last block is normalized. kinds: `model_type`s that are accepted; all but CLIP
    have SigLIP's parts.

    Raises CheckpointError for another kind of encoder, or a layer that does not exist.
    """
    configs.check_model_type("image encoder", c, *kinds)
    norm, is_clip = LayerNorm(c.layer_norm_eps), c.model_type == CLIP
    attention = RowAttention(c.num_attention_heads, c.num_attention_heads, c.hidden_size // c.num_attention_heads)
    block = Block(attention, Mlp(c.intermediate_size, configs.act(c.hidden_act)), norm)
    found = VisionEncoder(
        width=c.hidden_size,
        patches=Patches(c.image_size, c.patch_size, c.num_channels, class_token=is_clip, bias=not is_clip),
        blocks=(block,) * c.num_hidden_layers,
        norm=norm if is_clip else None,
        norm_out=norm if normed else None,
        layers=layers,
        drop_first=drop_first,
    )
    try:
        found.indices  # noqa: B018 - it checks them
    except ValueError as error:
        raise CheckpointError(f"config.json: `vision_feature_layer`: {error}.") from error
    return found


BLOCKS = WeightsMapper(
    (
        ("self_attn", "attn"),
        ("q_proj", "q"),
        ("k_proj", "k"),
        ("v_proj", "v"),
        ("out_proj", "o"),
        ("fc1", "up"),
        ("fc2", "down"),
        ("layer_norm1", "attn_in"),
        ("layer_norm2", "mlp_in"),
    )
)
"""Blocks of both encoders, without the names around them."""


def names(theirs: str, ours: str, normed: bool = False) -> WeightsMapper:
    """Maps the tensors of an encoder from the prefix `theirs` of a checkpoint to `ours`.

    The norm after the last block (unless `normed`) and the pooling head are ignored: projectors read hidden states of
    blocks.
    """
    roots = []
    for root in (theirs, f"{theirs}.vision_model"):
        roots += [
            (f"{root}.embeddings.class_embedding", f"{ours}.patches.first"),
            (f"{root}.embeddings.position_embedding.weight", f"{ours}.patches.positions"),
            (f"{root}.embeddings.patch_embedding", f"{ours}.patches.project"),
            (f"{root}.pre_layrnorm", f"{ours}.norm"),
            (f"{root}.post_layernorm", f"{ours}.norm_out"),
            (f"{root}.encoder.layers", f"{ours}.blocks"),
        ]
    return BLOCKS | WeightsMapper(
        tuple(roots),
        transforms=((f"{ours}.patches.project.weight", as_matrix),),
        ignored=(
            *(() if normed else (f"*{theirs}*.post_layernorm.*",)),
            *(f"*{theirs}*.head.*", f"*{theirs}*.position_ids"),
        ),
    )

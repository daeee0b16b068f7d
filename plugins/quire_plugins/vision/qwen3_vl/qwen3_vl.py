"""Qwen3-VL: images and videos of any size, with mixed M-RoPE, and features for the first blocks (DeepStack)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
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
    PatchGridTower,
    PatchMerger,
    RMSNorm,
    Rope,
    RowAttention,
    WeightsMapper,
    config_fields as configs,
    hookimpl,
    weight_names as names,
    with_attention,
)
from quire_plugins.architectures import llama
from quire_plugins.vision import qwen_vl

if TYPE_CHECKING:
    from quire_plugins.vision.qwen3_vl.inputs import TimedVideoProcessor
    from quire_plugins.vision.qwen_vl_media import QwenImageProcessor

NAME = "Qwen3VLForConditionalGeneration"

SECTIONS = (24, 20, 20)
"""Default for configs without the field."""


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError if it has fewer blocks than there are features for."""
    text, layers = c.text_config, c.vision_config.deepstack_visual_indexes
    if len(layers) > text.num_hidden_layers:
        raise CheckpointError(
            f"config.json: `deepstack_visual_indexes` has {len(layers)} layers, more than the language model."
        )
    rope = Rope.from_config(text, configs.head_dim(text))
    found = with_attention(
        llama.decoder(text),
        qk_norm=RMSNorm(text.rms_norm_eps),
        rope=replace(rope, sections=rope.sections or SECTIONS, mixed=True),
    )
    return replace(found, tied=c.tie_word_embeddings, deepstack=len(layers))


def tower(c: Any) -> PatchGridTower:
    """Describes `Qwen3VLVisionConfig`. Raises CheckpointError for layers that it does not have."""
    v = c.vision_config
    layers = tuple(v.deepstack_visual_indexes)
    if not all(0 <= layer < v.depth for layer in layers) or len(set(layers)) < len(layers):
        raise CheckpointError(f"config.json: `deepstack_visual_indexes` must be layers from 0 to {v.depth - 1}.")
    size, norm = v.hidden_size // v.num_heads, LayerNorm(1e-6)
    rope = Rope(size, v.rope_parameters["rope_theta"], sections=(size // 4,) * 2, axial=True)
    block = Block(
        RowAttention(v.num_heads, v.num_heads, size, rope), Mlp(v.intermediate_size, configs.act(v.hidden_act)), norm
    )
    merger = PatchMerger(norm=norm, merge=v.spatial_merge_size)
    return PatchGridTower(
        channels=v.in_channels,
        depth=v.temporal_patch_size,
        patch=v.patch_size,
        width=v.hidden_size,
        blocks=(block,) * v.depth,
        rope=rope,
        merger=merger,
        patch_bias=True,
        positions=int(v.num_position_embeddings**0.5),
        deepstack=tuple(sorted(layers)),
        deepstack_merger=replace(merger, norm_joined=True),
    )


_SEEING = WeightsMapper(
    (
        ("visual", "tower"),
        ("patch_embed.proj", "patches"),
        ("pos_embed.weight", "positions"),
        ("norm1", "attn_in"),
        ("norm2", "mlp_in"),
        ("attn.proj", "attn.o"),
        ("linear_fc1", "up"),
        ("linear_fc2", "down"),
        ("deepstack_merger_list", "deepstack"),
    ),
    transforms=qwen_vl.FLAT_PATCHES,
)

NAMES = names.LLAMA | names.LANGUAGE_MODEL | _SEEING.and_under("model")


def _pictures(context: Context) -> QwenImageProcessor:
    from quire_plugins.vision.qwen3_vl.inputs import PATCH
    from quire_plugins.vision.qwen_vl_media import QwenImageProcessor

    return QwenImageProcessor(context, PATCH)


def _videos(context: Context) -> TimedVideoProcessor:
    from quire_plugins.vision.qwen3_vl.inputs import TimedVideoProcessor

    return TimedVideoProcessor(context)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """`Qwen3VLForConditionalGeneration`, the only architecture."""
    yield Architecture(NAME, decoder, NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images and videos; chat templates write the placeholders."""
    yield InputMapper("qwen3-vl/image", NAME, "image", _pictures, qwen_vl.PICTURE)
    yield InputMapper("qwen3-vl/video", NAME, "video", _videos, qwen_vl.VIDEO)

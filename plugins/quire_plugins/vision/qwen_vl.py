"""Qwen2-VL and Qwen2.5-VL: images and videos of any size, with positions by time, height and width (M-RoPE)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from quire.plugin import (
    Architecture,
    Block,
    Context,
    Decoder,
    GatedMlp,
    InputMapper,
    LayerNorm,
    Mlp,
    Part,
    PatchGridTower,
    PatchMerger,
    RMSNorm,
    Rope,
    RowAttention,
    config_fields as configs,
    hookimpl,
    weight_names as names,
)
from quire_plugins.architectures import qwen

if TYPE_CHECKING:
    from quire_plugins.vision.qwen_vl_media import QwenImageProcessor, QwenVideoProcessor

TWO, TWO_AND_A_HALF = "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"
SECTIONS = (16, 24, 24)
"""Default for configs without the field."""

PICTURE, VIDEO = "<|image_pad|>", "<|video_pad|>"
"""Placeholders in chat templates."""


def decoder(c: Any) -> Decoder:
    """Describes the language model of both configs."""
    text = qwen.qwen2(c.text_config)

    def placed(block: Any) -> Any:
        rope = replace(block.attn.rope, sections=block.attn.rope.sections or SECTIONS)
        return replace(block, attn=replace(block.attn, rope=rope))

    return replace(text, tied=c.tie_word_embeddings, blocks=tuple(placed(block) for block in text.blocks))


def tower(c: Any) -> PatchGridTower:
    """Describes `Qwen2VLVisionConfig`: blocks of a standard vision transformer."""
    v = c.vision_config
    norm = LayerNorm(1e-6)
    return _tower(v, v.embed_dim, norm, Mlp(int(v.embed_dim * v.mlp_ratio), configs.act(v.hidden_act)))


def windowed_tower(c: Any) -> PatchGridTower:
    """Describes `Qwen2_5_VLVisionConfig`: blocks like those of a language model, most with windowed attention."""
    v = c.vision_config
    mlp = GatedMlp(v.intermediate_size, configs.act(v.hidden_act), bias=True)
    return replace(
        _tower(v, v.hidden_size, RMSNorm(1e-6), mlp),
        window=v.window_size // v.spatial_merge_size // v.patch_size,
        full_attention=frozenset(v.fullatt_block_indexes),
    )


def _tower(v: Any, width: int, norm: Part, mlp: Part) -> PatchGridTower:
    head_dim = width // v.num_heads
    rope = Rope(head_dim, v.rope_parameters["rope_theta"], sections=(head_dim // 4,) * 2, axial=True)
    block = Block(RowAttention(v.num_heads, v.num_heads, head_dim, rope), mlp, norm)
    return PatchGridTower(
        channels=v.in_channels,
        depth=v.temporal_patch_size,
        patch=v.patch_size,
        width=width,
        blocks=(block,) * v.depth,
        rope=rope,
        merger=PatchMerger(norm=norm, merge=v.spatial_merge_size),
    )


FLAT_PATCHES = (("tower.patches.weight", names.as_matrix),)
"""Transforms of the patch projection."""

_TOWER = names.WeightsMapper(
    (
        ("visual", "tower"),
        ("patch_embed.proj", "patches"),
        ("norm1", "attn_in"),
        ("norm2", "mlp_in"),
        ("attn.proj", "attn.o"),
        ("mlp.fc1", "mlp.up"),
        ("mlp.fc2", "mlp.down"),
        ("merger.ln_q", "merger.norm"),
        ("merger.mlp.0", "merger.up"),
        ("merger.mlp.2", "merger.down"),
    ),
    transforms=FLAT_PATCHES,
)

NAMES = names.LLAMA | names.LANGUAGE_MODEL | _TOWER.and_under("model")


def _pictures(context: Context) -> QwenImageProcessor:
    from quire_plugins.vision.qwen_vl_media import QwenImageProcessor

    return QwenImageProcessor(context)


def _videos(context: Context) -> QwenVideoProcessor:
    from quire_plugins.vision.qwen_vl_media import QwenVideoProcessor

    return QwenVideoProcessor(context, timed=False)


def _timed_videos(context: Context) -> QwenVideoProcessor:
    from quire_plugins.vision.qwen_vl_media import QwenVideoProcessor

    return QwenVideoProcessor(context, timed=True)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    yield Architecture(TWO, decoder, NAMES, tower)
    yield Architecture(TWO_AND_A_HALF, decoder, NAMES, windowed_tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images and videos of both; chat templates write the placeholders."""
    yield InputMapper("qwen2-vl/image", TWO, "image", _pictures, PICTURE)
    yield InputMapper("qwen2-vl/video", TWO, "video", _videos, VIDEO)
    yield InputMapper("qwen2.5-vl/image", TWO_AND_A_HALF, "image", _pictures, PICTURE)
    yield InputMapper("qwen2.5-vl/video", TWO_AND_A_HALF, "video", _timed_videos, VIDEO)

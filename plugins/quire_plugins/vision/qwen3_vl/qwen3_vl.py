"""Qwen3-VL, dense or a mixture of experts: images and videos of any size, with mixed M-RoPE, and features for the first
blocks (DeepStack).
"""

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
from quire_plugins.architectures import llama, qwen
from quire_plugins.vision import qwen_vl

if TYPE_CHECKING:
    from torch import Tensor

    from quire_plugins.vision.qwen3_vl.inputs import TimedVideoProcessor
    from quire_plugins.vision.qwen_vl_media import QwenImageProcessor

NAME, MOE = "Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"

SECTIONS = (24, 20, 20)
"""Default for configs without the field."""


def decoder(c: Any) -> Decoder:
    """Describes the language model. Raises CheckpointError if it has fewer blocks than there are features for."""
    return _placed(c, with_attention(llama.decoder(c.text_config), qk_norm=RMSNorm(c.text_config.rms_norm_eps)))


def moe_decoder(c: Any) -> Decoder:
    """Describes a language model whose MLPs are mixtures of experts. Raises CheckpointError like `decoder`."""
    return _placed(c, qwen.qwen3_moe(c.text_config))


def _placed(c: Any, found: Decoder) -> Decoder:
    text, layers = c.text_config, c.vision_config.deepstack_visual_indexes
    if len(layers) > text.num_hidden_layers:
        raise CheckpointError(
            f"config.json: `deepstack_visual_indexes` has {len(layers)} layers, more than the language model."
        )
    rope = Rope.from_config(text, configs.head_dim(text))
    found = with_attention(found, rope=replace(rope, sections=rope.sections or SECTIONS, mixed=True))
    return replace(found, tied=c.tie_word_embeddings, deepstack=len(layers))


def tower(c: Any) -> PatchGridTower:
    """Describes `Qwen3VLVisionConfig`, or that of Qwen3.5, which has no features for later blocks.

    Raises CheckpointError for layers that it does not have.
    """
    v = c.vision_config
    layers = tuple(configs.optional(v, "deepstack_visual_indexes", ()))
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
        deepstack_merger=replace(merger, norm_joined=True) if layers else None,
    )


TOWER_NAMES = WeightsMapper(
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

NAMES = names.LLAMA | names.LANGUAGE_MODEL | TOWER_NAMES.and_under("model")


def _outputs_first(experts: Tensor, decoder: Any) -> Tensor:
    """Experts [experts, outputs, inputs]. Published checkpoints have inputs first, newer ones may have outputs first.

    As in transformers, a matrix whose shape fits is not turned, so that square ones have outputs first.
    """
    expert = next(block.mlp.expert for block in decoder.blocks if hasattr(block.mlp, "expert"))
    expected = {(expert.first_outputs, decoder.width), (decoder.width, expert.intermediate_size)}
    return experts if tuple(experts.shape[1:]) in expected else experts.transpose(1, 2)


MOE_NAMES = (
    NAMES
    | names.MOE
    | WeightsMapper(transforms=tuple((f"*.experts.{name}", _outputs_first) for name in ("gate_up", "down")))
)


def pictures(context: Context) -> QwenImageProcessor:
    from quire_plugins.vision.qwen3_vl.inputs import PATCH
    from quire_plugins.vision.qwen_vl_media import QwenImageProcessor

    return QwenImageProcessor(context, PATCH)


def videos(context: Context) -> TimedVideoProcessor:
    from quire_plugins.vision.qwen3_vl.inputs import TimedVideoProcessor

    return TimedVideoProcessor(context)


@hookimpl
def quire_architectures() -> Iterable[Architecture]:
    """Both kinds have the same tower."""
    yield Architecture(NAME, decoder, NAMES, tower)
    yield Architecture(MOE, moe_decoder, MOE_NAMES, tower)


@hookimpl
def quire_input_mappers() -> Iterable[InputMapper]:
    """Images and videos; chat templates write the placeholders."""
    yield InputMapper("qwen3-vl/image", NAME, "image", pictures, qwen_vl.PICTURE)
    yield InputMapper("qwen3-vl/video", NAME, "video", videos, qwen_vl.VIDEO)
    yield InputMapper("qwen3-vl-moe/image", MOE, "image", pictures, qwen_vl.PICTURE)
    yield InputMapper("qwen3-vl-moe/video", MOE, "video", videos, qwen_vl.VIDEO)

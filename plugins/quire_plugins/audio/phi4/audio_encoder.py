"""The audio encoder of Phi-4 multimodal as parts, with the names of its tensors. This module is not a plugin."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import Projector, WeightsMapper, config_fields as configs, weight_names

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder

WINDOW = 500
"""Tokens of a longer audio that attend to each other, padded with zeros."""


@dataclass(frozen=True, kw_only=True)
class Phi4AudioTower:
    """Frames through strided convolutions and conformer blocks to one of two projectors.

    mels: size of a frame. halvings: convolutions with stride 2, each of `channels`; bands: what they leave of a frame.
    reach: largest distance with a bias of its own. kernel: tokens that the causal convolution of a block sees.
    """

    mels: int
    halvings: int
    channels: int
    bands: int
    width: int
    num_blocks: int
    heads: int
    mlp: int
    kernel: int
    reach: int
    symmetric: bool
    act: str
    projector: Projector

    def rows(self, frames: int) -> int:
        """Embeddings of an audio of so many frames."""
        return -(-frames // 2**self.halvings)

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower of audio; its rows have this width."""
        from quire_plugins.audio.phi4.audio_module import Phi4AudioModule

        return Phi4AudioModule(width, self, builder)


FIXED = {
    "activation": ("swish",),
    "conv_activation": ("swish",),
    "conv_glu_type": ("swish",),
    "nemo_activation": ("relu",),
    "chunk_size": (-1,),
    "downsample_rate": (1,),
    "depthwise_multiplier": (1,),
}
"""Values of settings that the published models do not vary."""


def tower(c: Any) -> Phi4AudioTower:
    """Describes `Phi4MultimodalAudioConfig`. Raises CheckpointError for settings that cannot be built."""
    for name, values in FIXED.items():
        if getattr(c, name) not in values:
            raise CheckpointError(
                f"config.json: `audio_config.{name}` must be {values[0]!r}; got {getattr(c, name)!r}."
            )
    for name in ("ext_pw_out_channel", "depthwise_separable_out_channel"):
        if getattr(c, name) != c.hidden_size:
            raise CheckpointError(
                f"config.json: `audio_config.{name}` must be `hidden_size` {c.hidden_size}; got {getattr(c, name)}."
            )
    halvings, bands = int(log2(c.time_reduction)), c.input_size
    for _ in range(halvings):
        bands = (bands - 1) // 2 + 1
    return Phi4AudioTower(
        mels=c.input_size,
        halvings=halvings,
        channels=c.nemo_conv_channels,
        bands=bands,
        width=c.hidden_size,
        num_blocks=c.num_blocks,
        heads=c.num_attention_heads,
        mlp=c.intermediate_size,
        kernel=c.kernel_size,
        reach=c.bias_max_distance,
        symmetric=c.bias_symmetric,
        act=configs.act("silu"),
        projector=Projector(c.hidden_size, "gelu"),
    )


_THEIRS, _OURS = "model.embed_tokens_extend.audio_embed", "tower.audio"

NAMES = WeightsMapper(
    (
        (f"{_THEIRS}.encoder", _OURS),
        (f"{_THEIRS}.encoder.encoders", f"{_OURS}.blocks"),
        (f"{_THEIRS}.encoder.encoder_embedding.global_mean", f"{_OURS}.mean"),
        (f"{_THEIRS}.encoder.encoder_embedding.global_invstd", f"{_OURS}.inverse_deviation"),
        (f"{_THEIRS}.encoder.relative_attention_bias_layer.bias_values.weight", f"{_OURS}.distances"),
        (f"{_THEIRS}.encoder.embed.out", f"{_OURS}.shortened.out"),
        (f"{_THEIRS}.encoder.embed.conv", f"{_OURS}.shortened.convolutions"),
        (f"{_THEIRS}.up_proj_for_speech", f"{_OURS}.speech.up"),
        (f"{_THEIRS}.down_proj_for_speech", f"{_OURS}.speech.down"),
        (f"{_THEIRS}.up_proj_for_vision_speech", f"{_OURS}.beside_images.up"),
        (f"{_THEIRS}.down_proj_for_vision_speech", f"{_OURS}.beside_images.down"),
        ("conv.glu.b1", "conv.bias_out"),
        ("conv.glu.b2", "conv.bias_gate"),
        ("conv.glu.ext_pw_conv_1d", "conv.gated"),
        ("conv.dw_sep_conv_1d.dw_conv", "conv.depthwise"),
        ("conv.dw_sep_conv_1d.pw_conv", "conv.pointwise"),
        ("conv.ext_pw_conv_1d", "conv.out"),
        ("layer_norm_att", "attn_norm"),
    ),
    transforms=(
        (f"{_OURS}.blocks.*.conv.gated.weight", weight_names.as_matrix),
        (f"{_OURS}.blocks.*.conv.pointwise.weight", weight_names.as_matrix),
        (f"{_OURS}.blocks.*.conv.out.weight", weight_names.as_matrix),
        (f"{_OURS}.blocks.*.conv.bias_*", weight_names.as_vector),
    ),
)
"""The audio encoder of a checkpoint."""

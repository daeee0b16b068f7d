"""The encoder of Granite Speech as parts, with the names of its tensors. This module is not a plugin.

Gulati et al., "Conformer: Convolution-augmented Transformer for Speech Recognition", 2020; the attention has the
relative positions of Shaw et al., "Self-Attention with Relative Position Representations", 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import WeightsMapper, weight_names as names

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True, kw_only=True)
class Conformer:
    """Frames through blocks of two MLPs with attention and a convolution between them.

    inputs: size of a frame. width: hidden size. mlp: factor of the size of the MLPs. context: frames of the windows
    within which frames attend to each other. reach: largest distance with an embedding of its own. kernel: frames that
    the depthwise convolution sees. expansion: factor of its channels. classes: characters of the CTC head, whose
    probabilities are added back in the middle of the blocks.
    """

    inputs: int
    width: int
    num_blocks: int
    heads: int
    head_dim: int
    mlp: int
    context: int
    reach: int
    kernel: int
    expansion: int
    classes: int

    def build(self, builder: ModuleBuilder) -> nn.Module:
        """A module (frames of all items [n, inputs], their counts, call) -> [n, width]."""
        from quire_plugins.audio.granite_speech.conformer_module import ConformerModule

        return ConformerModule(self, builder)


def conformer(c: Any) -> Conformer:
    """Describes `GraniteSpeechEncoderConfig`. Raises CheckpointError for a window without embeddings of distances."""
    if not 0 < c.context_size <= c.max_pos_emb:
        raise CheckpointError(
            f"config.json: `encoder_config.context_size` must be from 1 to `max_pos_emb` {c.max_pos_emb}, got"
            f" {c.context_size}."
        )
    return Conformer(
        inputs=c.input_dim,
        width=c.hidden_dim,
        num_blocks=c.num_layers,
        heads=c.num_heads,
        head_dim=c.dim_head,
        mlp=c.feedforward_mult,
        context=c.context_size,
        reach=c.max_pos_emb,
        kernel=c.conv_kernel_size,
        expansion=c.conv_expansion_factor,
        classes=c.output_dim,
    )


NAMES = WeightsMapper(
    (
        ("encoder", "tower.encoder"),
        ("encoder.layers", "tower.encoder.blocks"),
        ("rel_pos_emb.weight", "distances"),
        ("depth_conv.conv.weight", "depthwise"),
    ),
    transforms=(
        ("tower.encoder.blocks.*.conv.up_conv.weight", names.as_matrix),
        ("tower.encoder.blocks.*.conv.down_conv.weight", names.as_matrix),
    ),
    ignored=("*.batch_norm.num_batches_tracked",),
)
"""The encoder of a checkpoint."""

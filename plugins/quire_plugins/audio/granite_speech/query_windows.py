"""The Q-Former of Granite Speech: learned queries read windows of hidden states. This module is not a plugin.

Li et al., "BLIP-2: Bootstrapping Language-Image Pre-training with Frozen Image Encoders and Large Language Models",
2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from quire.errors import CheckpointError
from quire.plugin import WeightsMapper, config_fields as configs

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True, kw_only=True)
class QueryWindows:
    """Each window of hidden states becomes the outputs of `queries` learned queries.

    inputs: size of the hidden states. width: that of the queries. window: hidden states of a window. every: layers from
    one that reads the window to the next.
    """

    inputs: int
    width: int
    heads: int
    mlp: int
    act: str
    layers: int
    every: int
    window: int
    queries: int
    eps: float

    def rows(self, count: int) -> int:
        """Embeddings of an item of so many hidden states."""
        return -(-count // self.window) * self.queries

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (hidden states of all items, their counts, call) -> rows of this width."""
        from quire_plugins.audio.granite_speech.query_module import QueryWindowsModule

        return QueryWindowsModule(width, self, builder)


def query_windows(c: Any) -> QueryWindows:
    """Describes the projector of `GraniteSpeechConfig`. Raises CheckpointError if it is unknown or does not fit."""
    q = c.projector_config
    if q.model_type != "blip_2_qformer" or q.use_qformer_text_input:
        raise CheckpointError(f"The projector is {q.model_type!r}; what can be built is blip_2_qformer without text.")
    if q.encoder_hidden_size != c.encoder_config.hidden_dim or c.window_size % c.downsample_rate:
        raise CheckpointError(
            f"config.json: `projector_config.encoder_hidden_size` {q.encoder_hidden_size} must be the encoder's"
            f" `hidden_dim` {c.encoder_config.hidden_dim}, and `window_size` {c.window_size} a multiple of"
            f" `downsample_rate` {c.downsample_rate}."
        )
    return QueryWindows(
        inputs=q.encoder_hidden_size,
        width=q.hidden_size,
        heads=q.num_attention_heads,
        mlp=q.intermediate_size,
        act=configs.act(q.hidden_act),
        layers=q.num_hidden_layers,
        every=q.cross_attention_frequency,
        window=c.window_size,
        queries=c.window_size // c.downsample_rate,
        eps=q.layer_norm_eps,
    )


_LAYERS = "projector.qformer.encoder.layer"

NAMES = WeightsMapper(
    (
        ("projector.query", "tower.projector.queries"),
        ("projector.linear", "tower.projector.linear"),
        ("projector.qformer.layernorm", "tower.projector.norm"),
        (_LAYERS, "tower.projector.layers"),
        ("attention.attention.query", "attention.query"),
        ("attention.attention.key", "attention.key"),
        ("attention.attention.value", "attention.value"),
        ("attention.output.dense", "attention.out"),
        ("attention.output.LayerNorm", "attention.norm"),
        ("crossattention.attention.query", "crossattention.query"),
        ("crossattention.attention.key", "crossattention.key"),
        ("crossattention.attention.value", "crossattention.value"),
        ("crossattention.output.dense", "crossattention.out"),
        ("crossattention.output.LayerNorm", "crossattention.norm"),
        ("intermediate_query.dense", "up"),
        ("output_query.dense", "down"),
        ("output_query.LayerNorm", "norm"),
    ),
)
"""The projector of a checkpoint."""

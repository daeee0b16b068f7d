"""Parts of decoders with per-layer embeddings: frozen descriptions that import no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.plugin import Block, Decoder

if TYPE_CHECKING:
    from torch import nn

    from quire.plugin import ModuleBuilder
    from quire_models import DecoderModel


@dataclass(frozen=True)
class PerLayerBlock(Block):
    """A block after whose MLP the token's embedding for this block is added, and whose output is scaled.

    layer: its index. inputs: width of the embeddings, 0 for models without them. act: activation of the gate.
    """

    layer: int = 0
    inputs: int = 0
    act: str = "gelu_tanh"

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_plugins.architectures.per_layer.modules import PerLayerResidualBlock

        return PerLayerResidualBlock(width, self, builder)


@dataclass(frozen=True)
class PerLayerDecoder(Decoder):
    """A decoder with embeddings for each block. inputs: their width, 0: none. inputs_vocab: rows of their table.

    eps: of the norm of what is projected from the first block's input. media_token: the token whose embeddings for the
    blocks those of media are; None: their own ids.
    """

    inputs: int = 0
    inputs_vocab: int = 0
    eps: float = 1e-6
    media_token: int | None = None

    def build(self, builder: ModuleBuilder) -> DecoderModel:
        """The model, with uninitialized weights."""
        from quire_plugins.architectures.per_layer.modules import PerLayerDecoderModel

        return PerLayerDecoderModel(self, builder)

"""Parts of decoders with several residual streams (AltUp, arXiv 2301.13310): frozen descriptions without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_plugins.architectures.per_layer.parts import PerLayerBlock, PerLayerDecoder

if TYPE_CHECKING:
    from torch import nn

    from quire.plugin import ModuleBuilder
    from quire_models import DecoderModel


@dataclass(frozen=True)
class AltUpBlock(PerLayerBlock):
    """A block that predicts all streams, computes one of them, and corrects the others by what it found.

    streams: their number (altup_num_inputs). active: the computed one (altup_active_idx). laurel: rank of a product
    beside the attention (laurel_rank). scaled: whether the computed stream is scaled before the embedding for this
    block is added to the streams after the first (altup_correct_scale).
    """

    streams: int = 4
    active: int = 0
    laurel: int = 64
    scaled: bool = True

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) on [tokens, streams * width]."""
        from quire_plugins.architectures.per_layer.altup_modules import AltUpResidualBlock

        return AltUpResidualBlock(width, self, builder)


@dataclass(frozen=True)
class AltUpDecoder(PerLayerDecoder):
    """A decoder with several residual streams, the first of which are the embeddings."""

    streams: int = 4

    def build(self, builder: ModuleBuilder) -> DecoderModel:
        """The model, with uninitialized weights."""
        from quire_plugins.architectures.per_layer.altup_modules import AltUpModel

        return AltUpModel(self, builder)


@dataclass(frozen=True)
class SparseActivation:
    """An activation of what exceeds a bound, which a share `sparsity` of normally distributed numbers would not."""

    act: str
    sparsity: float

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module [tokens, width] -> the same shape."""
        from quire_plugins.architectures.per_layer.altup_modules import SparseActivationModule

        return SparseActivationModule(self, builder)

"""Short convolutions in the place of attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.state import StateShape, StateTensor

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True)
class ShortConv:
    """Double-gated short convolution (LFM2): out(c * conv(b * x)), where b, c and x are the thirds of one matrix.

    width: of the block (hidden_size). kernel: taps of the convolution (conv_L_cache). bias: of the convolution and both
    matrices (conv_bias).
    """

    width: int
    kernel: int
    bias: bool = False

    @property
    def state_shape(self) -> StateShape:
        """Inputs of the convolution, oldest first."""
        return StateShape((StateTensor((self.kernel - 1, self.width)),))

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.recurrent.convolution import ShortConvModule

        return ShortConvModule(width, self, builder)

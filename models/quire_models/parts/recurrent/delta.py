"""Linear attention by the gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.state import StateShape, StateTensor

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True)
class GatedDeltaNet:
    """Gated delta net (arXiv 2412.06464): a convolution of queries, keys and values, then the gated delta rule.

    heads, key_heads: value heads, and query and key heads (linear_num_value_heads, linear_num_key_heads). key_dim,
    value_dim: of a head (linear_key_head_dim, linear_value_head_dim). kernel: taps of the convolution
    (linear_conv_kernel_dim). act: after the convolution (hidden_act). eps: of the norm of the outputs, which are then
    gated. matrices: names of the input matrices, each the concatenation of some of q, k, v, z (gate of the outputs), b
    (weights of the updates) and a (decays), in this order. factor: of the weights; 2 if linear_allow_neg_eigval.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 4
    act: str = "silu"
    eps: float = 1e-6
    matrices: tuple[str, ...] = ("qkv", "z", "b", "a")
    factor: float = 1.0

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @property
    def state_shape(self) -> StateShape:
        """Inputs of the convolution, oldest first, and a matrix for each head."""
        matrices = StateTensor((self.heads, self.key_dim, self.value_dim), float32=True)
        return StateShape((StateTensor((self.kernel - 1, self.channels)), matrices))

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.recurrent.delta import GatedDeltaNetModule

        return GatedDeltaNetModule(width, self, builder)


@dataclass(frozen=True)
class KimiDelta:
    """Kimi Delta Attention (arXiv 2510.26692): the gated delta rule with a decay for each channel of the keys.

    heads, head_dim: linear_num_heads, linear_head_dim. kernel: linear_conv_kernel_dim. act: hidden_act. eps: of the
    outputs' norm, which a sigmoid then gates. Decays and gates are products of two matrices, over head_dim numbers.
    """

    heads: int
    head_dim: int
    kernel: int = 4
    act: str = "silu"
    eps: float = 1e-6

    @property
    def state_shape(self) -> StateShape:
        """Inputs of the convolution of queries, keys and values, and a matrix for each head."""
        matrices = StateTensor((self.heads, self.head_dim, self.head_dim), float32=True)
        return StateShape((StateTensor((self.kernel - 1, 3 * self.heads * self.head_dim)), matrices))

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.recurrent.delta import KimiDeltaModule

        return KimiDeltaModule(width, self, builder)

"""State space models: Mamba-2, and Mamba with a decay for each number of the state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.norms import RMSNorm
from quire_models.parts.state import StateShape, StateTensor

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True)
class GatedNorm:
    """Norm of a Mamba-2's outputs, over `groups` groups, with their gate before the norm or after it.

    gate_first: not mamba_norm_before_gate.
    """

    eps: float = 1e-6
    groups: int = 1
    gate_first: bool = True


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2 (arXiv 2405.21060): a convolution of x, B and C, then a scan over a matrix for each head.

    heads, head_dim: num_heads, head_dim (mamba_n_heads, mamba_d_head). state_size, groups: of B and C (mamba_d_state,
    mamba_n_groups). kernel: taps of the convolution (mamba_d_conv). conv_bias, bias, out_bias: biases of the
    convolution, the input matrix and the output matrix. norm: of the outputs; None: they are only gated. limits: of
    time steps (time_step_limit). factors: of the input matrix's outputs, gate, x, B, C and steps (ssm_multipliers).
    """

    heads: int
    head_dim: int
    state_size: int
    groups: int = 1
    kernel: int = 4
    act: str = "silu"
    conv_bias: bool = True
    bias: bool = False
    out_bias: bool = False
    norm: GatedNorm | None = GatedNorm()
    limits: tuple[float, float] = (0.0, float("inf"))
    factors: tuple[float, float, float, float, float] = (1.0, 1.0, 1.0, 1.0, 1.0)

    @property
    def inner(self) -> int:
        """Width of x (intermediate_size, mamba_d_ssm)."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state_size

    @property
    def state_shape(self) -> StateShape:
        """Inputs of the convolution, oldest first, and a matrix for each head."""
        matrices = StateTensor((self.heads, self.state_size, self.head_dim), float32=True)
        return StateShape((StateTensor((self.kernel - 1, self.channels)), matrices))

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.recurrent.mamba import Mamba2Module

        return Mamba2Module(width, self, builder)


@dataclass(frozen=True)
class Mamba1:
    """Mamba (arXiv 2312.00752): a convolution, then a scan over `state_size` numbers for each channel.

    inner: channels (intermediate_size). state_size: state_size, mamba_d_state. rank: of the time steps
    (time_step_rank, mamba_dt_rank). kernel: conv_kernel, mamba_d_conv. conv_bias, bias: use_conv_bias, use_bias.
    norm: of steps, B and C (Jamba, Falcon Mamba).
    """

    inner: int
    state_size: int
    rank: int
    kernel: int = 4
    act: str = "silu"
    conv_bias: bool = True
    bias: bool = False
    norm: RMSNorm | None = None

    @property
    def state_shape(self) -> StateShape:
        """Inputs of the convolution, oldest first, and numbers of each channel."""
        numbers = StateTensor((self.state_size, self.inner), float32=True)
        return StateShape((StateTensor((self.kernel - 1, self.inner)), numbers))

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        from quire_models.modules.recurrent.mamba import Mamba1Module

        return Mamba1Module(width, self, builder)

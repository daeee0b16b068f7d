"""Modules of state space models."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models.modules.recurrent.convolution import CausalConvolution, GatedNormModule, float32_parameter

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.recurrent.mamba import Mamba1, Mamba2
    from quire_models.step.forward_batch import ForwardBatch


class Mamba2Module(nn.Module):
    """The module that the part `parts.recurrent.mamba.Mamba2` builds."""

    def __init__(self, width: int, part: Mamba2, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part, self.layer = part, builder.layer
        self._ops = builder.ops
        self._sizes = [part.inner, part.channels, part.heads]
        self.in_proj = builder.projection(width, sum(self._sizes), part.bias)
        # the convolution is linear in its inputs: their factors are its weights'
        _, *factors, _ = part.factors
        of_channels = torch.tensor(factors).repeat_interleave(
            torch.tensor([part.inner, *[part.groups * part.state_size] * 2])
        )
        self.conv = CausalConvolution(part.channels, part.kernel, part.conv_bias, part.act, builder, of_channels)
        self.A_log, self.dt_bias, self.D = (float32_parameter(builder, part.heads) for _ in range(3))
        self.norm = (
            GatedNormModule(
                part.inner, part.inner // part.norm.groups, part.norm.eps, "silu", builder, part.norm.gate_first
            )
            if part.norm
            else None
        )
        self.o = builder.projection(part.inner, width, part.out_bias)
        self.process_weights()

    def process_weights(self) -> None:
        self.rate = -self.A_log.exp()

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]; advances the state."""
        assert fwd.state is not None
        assert fwd.state_slots is not None
        part = self.part
        gate, xbc, step = self.in_proj(x, fwd).split(self._sizes, -1)
        gate, step = (
            t if factor == 1.0 else t * factor for t, factor in ((gate, part.factors[0]), (step, part.factors[-1]))
        )
        seen = self._ops.ssd_scan(
            self.conv(xbc, fwd),
            step,
            self.rate,
            self.dt_bias,
            self.D,
            fwd.state.tensors[self.layer][1],
            fwd.state_slots,
            fwd.rows,
            (part.state_size, part.head_dim),
            part.limits,
        ).flatten(1)
        gated = seen * self._ops.act(gate, part.act) if self.norm is None else self.norm(seen, gate)
        return self.o(gated, fwd)


class Mamba1Module(nn.Module):
    """The module that the part `parts.recurrent.mamba.Mamba1` builds."""

    def __init__(self, width: int, part: Mamba1, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part, self.layer = part, builder.layer
        self._ops = builder.ops
        self._sizes = [part.rank, part.state_size, part.state_size]
        self.in_proj = builder.projection(width, 2 * part.inner, part.bias)
        self.conv = CausalConvolution(part.inner, part.kernel, part.conv_bias, part.act, builder)
        self.x_proj = builder.projection(part.inner, sum(self._sizes))
        self.dt_proj = builder.projection(part.rank, part.inner, True)
        norm = part.norm
        self.dt_norm, self.b_norm, self.c_norm = (norm.build(n, builder) if norm else None for n in self._sizes)
        self.A_log = float32_parameter(builder, part.inner, part.state_size)
        self.D = float32_parameter(builder, part.inner)
        self.o = builder.projection(part.inner, width, part.bias)
        self.process_weights()

    def process_weights(self) -> None:
        """Derive the rates, [state_size, inner]."""
        self.rate = -self.A_log.exp().T.contiguous()

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]; advances the state."""
        assert fwd.state is not None
        assert fwd.state_slots is not None
        h, gate = self.in_proj(x, fwd).split([self.part.inner] * 2, -1)
        h = self.conv(h, fwd)
        step, b, c = self.x_proj(h, fwd).split(self._sizes, -1)
        if self.dt_norm is not None and self.b_norm is not None and self.c_norm is not None:
            step, b, c = self.dt_norm(step), self.b_norm(b), self.c_norm(c)
        state, slots = fwd.state.tensors[self.layer][1], fwd.state_slots
        h = self._ops.selective_scan(h, self.dt_proj(step, fwd), b, c, self.rate, self.D, state, slots, fwd.rows)
        return self.o(h * self._ops.act(gate, self.part.act), fwd)

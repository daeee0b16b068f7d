"""Causal convolutions, alone and with gates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire_models.loading.mapping import ParameterSlice

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.recurrent.convolution import ShortConv
    from quire_models.step.forward_batch import ForwardBatch


class CausalConvolution(nn.Module):
    """A causal convolution of each channel by itself; its inputs are the first tensor of the block's state.

    weight [channels, 1, kernel]; bias [channels] or None. factors: of the inputs of each channel, float32 [channels].
    pieces: names and channels of convolutions that some checkpoints store one by one, beside this module.
    """

    def __init__(
        self,
        channels: int,
        kernel: int,
        bias: bool,
        act: str,
        builder: ModuleBuilder,
        factors: Tensor | None = None,
        pieces: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.layer = builder.layer
        self._ops, self._act, self._factors = builder.ops, act, factors
        self.weight = builder.parameter(channels, 1, kernel)
        self.bias = builder.parameter(channels) if bias else None
        self._pieces = dict(pieces or {})
        self.process_weights()

    def parameter_slices(self, path: str) -> Iterable[tuple[str, ParameterSlice]]:
        """The weight of each piece: `attn.q_conv.weight` for the q of `attn.conv`."""
        start, parent = 0, path.rpartition(".")[0]
        for name, count in self._pieces.items():
            yield f"{parent}.{name}.weight", ParameterSlice(f"{path}.weight", (slice(start, start + count),))
            start += count

    def process_weights(self) -> None:
        """Derive the weights as the op takes them, float32 [kernel, channels]."""
        taps = self.weight[:, 0].float()
        self.taps = (taps if self._factors is None else taps * self._factors[:, None].to(taps.device)).T.contiguous()
        self.offset = None if self.bias is None else self.bias.float()

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, channels] -> [tokens, channels]; advances the state."""
        assert fwd.state is not None
        assert fwd.state_slots is not None
        window = fwd.state.tensors[self.layer][0]
        return self._ops.causal_conv(x, self.taps, self.offset, window, fwd.state_slots, fwd.rows, self._act)


class GatedNormModule(nn.Module):
    """An RMS norm with a gate, over groups of the last dimension; weight [width], or [group] if they share it."""

    def __init__(
        self, width: int, group: int, eps: float, act: str, builder: ModuleBuilder, gate_first: bool = False
    ) -> None:
        super().__init__()
        self._group, self._eps, self._act, self._gate_first = group, eps, act, gate_first
        self._ops = builder.ops
        self.weight = builder.parameter(width)
        self.process_weights()

    def process_weights(self) -> None:
        """Widen the weight, [group] or [groups, group]."""
        weight = self.weight.float().contiguous()
        self.scale = weight if len(weight) == self._group else weight.view(-1, self._group)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        """x, gate [tokens, width] -> [tokens, width]."""
        x, gate = (t.unflatten(-1, (-1, self._group)) for t in (x, gate))
        return self._ops.gated_rms_norm(x, gate, self.scale, self._eps, self._act, self._gate_first).flatten(1)


def float32_parameter(builder: ModuleBuilder, *shape: int) -> nn.Parameter:
    """A parameter in float32, whatever the model's data type: decays and steps need its precision."""
    return nn.Parameter(torch.empty(*shape, dtype=torch.float32, device=builder.device), requires_grad=False)


class ShortConvModule(nn.Module):
    """The module that the part `parts.recurrent.convolution.ShortConv` builds."""

    def __init__(self, width: int, part: ShortConv, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.in_proj = builder.projection(width, 3 * width, part.bias)
        self.conv = CausalConvolution(width, part.kernel, part.bias, "identity", builder)
        self.o = builder.projection(width, width, part.bias)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]; advances the state."""
        before, after, h = self.in_proj(x, fwd).split([self.o.inputs] * 3, -1)
        return self.o(after * self.conv(before * h, fwd), fwd)

"""A state mixer for tests of the engine: a short convolution and a decaying sum per channel, one token after another.

Its sums do not depend on how a seq is cut into chunks, bit for bit, so that wrong tokens mean a wrong state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from quire_models import ForwardBatch, StateShape, StateTensor
from quire_models.modules.builder import ModuleBuilder

KERNEL = 3


@dataclass(frozen=True)
class RunningState:
    """w_t = Σ kernel[i] x[t - i];  s_t = decay * s_{t-1} + w_t;  out(tanh(s_t)). channels: width of x after `inner`."""

    channels: int
    decay: float = 0.9

    @property
    def state_shape(self) -> StateShape:
        return StateShape((StateTensor((self.channels, KERNEL - 1)), StateTensor((self.channels,), float32=True)))

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, forward) -> [tokens, width]."""
        return RunningStateModule(width, self, builder)


class RunningStateModule(nn.Module):
    """The module that `RunningState` builds."""

    def __init__(self, width: int, part: RunningState, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part, self.layer = part, builder.layer
        self.inner = builder.projection(width, part.channels)
        self.kernel = builder.parameter(part.channels, KERNEL)
        self.out = builder.projection(part.channels, width)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]; advances the state of each row."""
        u: Any = self.inner(x, fwd)
        assert fwd.state is not None
        assert fwd.state_slots is not None
        windows, sums = fwd.state.tensors[self.layer]
        found = torch.empty_like(u)
        starts = fwd.query_starts.tolist()
        slots = fwd.state_slots.tolist()
        assert len(set(slots)) == len(slots), "two rows share a slot"
        for slot, begin, end in zip(slots, starts[:-1], starts[1:], strict=True):
            window, total = windows[slot].clone(), sums[slot].clone()
            for t in range(begin, end):
                window = torch.cat([window, u[t, :, None]], 1)
                total = self.part.decay * total + (window * self.kernel).sum(1).float()
                window = window[:, 1:]
                found[t] = torch.tanh(total).to(u.dtype)
            windows[slot], sums[slot] = window, total
        return self.out(found, fwd)

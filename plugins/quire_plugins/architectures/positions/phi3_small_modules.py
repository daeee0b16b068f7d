"""The modules of Phi-3-small."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from quire.plugin import ForwardBatch, ModuleBuilder
from quire_models.modules.blocks import DecoderModel

if TYPE_CHECKING:
    from quire_plugins.architectures.positions.phi3_small import DummyTokenDecoder, GegeluMlp

SATURATED = 12.0
"""quick_gelu of numbers below -12 is 0 to within 2e-8."""


class GegeluFeedForward(nn.Module):
    """The module that the part `GegeluMlp` builds."""

    def __init__(self, width: int, part: GegeluMlp, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part, self._ops = part, builder.ops
        size = part.intermediate_size
        self.gate_up = builder.projection(width, {"gate": size, "up": size}, True)
        self.down = builder.projection(size, width, True)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        limit = self.part.limit
        gate, up = self.gate_up(x, fwd).split([self.part.intermediate_size] * 2, -1)
        # programs of blocks clamp symmetrically, which changes nothing where the activation is 0 anyway
        gate = gate.clamp(-limit, limit) if limit >= SATURATED else gate.clamp(max=limit)
        gate = self._ops.act(gate, "quick_gelu")
        return self.down(gate * up.clamp(-limit, limit) + gate, fwd)


class DummyTokenModel(DecoderModel):
    """The module that the part `DummyTokenDecoder` builds."""

    def __init__(self, part: DummyTokenDecoder, builder: ModuleBuilder) -> None:
        super().__init__(part, builder)
        self._dummies = torch.tensor(part.dummies, dtype=torch.int64, device=builder.device)

    def logits(self, hidden: Tensor, adapters: Any = None) -> Tensor:
        """hidden [rows, width] -> float32 [rows, vocab]."""
        return super().logits(hidden, adapters).index_fill_(1, self._dummies, -torch.inf)

    def argmax(self, hidden: Tensor, adapters: Any = None) -> list[int]:
        """The most likely token of each row, none of the dummies."""
        found: list[int] = self.ops.argmax(self.logits(hidden, adapters)).tolist()
        return found

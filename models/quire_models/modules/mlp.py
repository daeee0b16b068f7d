"""Feed-forward modules, gated and plain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.decoder import GatedMlp, Mlp, Part
    from quire_models.step.forward_batch import ForwardBatch


class GatedFeedForward(nn.Module):
    """The module that the part `parts.decoder.GatedMlp` builds."""

    def __init__(self, width: int, part: GatedMlp, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self._name, self.act = _activation(part.act, part.intermediate_size, builder)
        sizes = {"gate": part.intermediate_size, "up": part.intermediate_size}
        self.gate_up = builder.projection(width, sizes, part.bias, gated=self.act is None)
        self.down = builder.projection(part.intermediate_size, width, part.bias)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        part, both = self.part, self.gate_up(x, fwd)
        if self.act is None and part.gate_scale == 1.0:
            y = self.down(self._ops.gated_act(both, self._name), fwd)
        else:
            gate, up = both.split([part.intermediate_size] * 2, -1)
            gate = gate if part.gate_scale == 1.0 else gate * part.gate_scale
            y = self.down((self._ops.act(gate, self._name) if self.act is None else self.act(gate)) * up, fwd)
        return y if part.down_scale == 1.0 else y * part.down_scale


class FeedForward(nn.Module):
    """The module that the part `parts.decoder.Mlp` builds."""

    def __init__(self, width: int, part: Mlp, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self._ops = builder.ops
        self._name, self.act = _activation(part.act, part.intermediate_size, builder)
        self.up = builder.projection(width, part.intermediate_size, part.bias)
        self.down = builder.projection(part.intermediate_size, width, part.bias)

    def forward(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        up = self.up(x, fwd)
        return self.down(self._ops.act(up, self._name) if self.act is None else self.act(up), fwd)


def _activation(act: str | Part, size: int, builder: ModuleBuilder) -> tuple[str, nn.Module | None]:
    """Name of an activation that the ops support, or ("", module of the activation part)."""
    return (act, None) if isinstance(act, str) else ("", act.build(size, builder))

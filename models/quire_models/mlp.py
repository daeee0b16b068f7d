"""Feed-forward layers: gated, plain, and mixtures of experts. They know tokens one by one, never seqs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from quire_models.mapping import Place
from quire_models.projection import ProjectionDelta, changed

if TYPE_CHECKING:
    from quire_models.forward import Forward
    from quire_models.make import Make
    from quire_models.parts import GatedMlp, Mlp, Moe, Part


class GatedFeedForward(nn.Module):
    """The module of `parts.GatedMlp`."""

    def __init__(self, width: int, part: GatedMlp, make: Make) -> None:
        super().__init__()
        self.part = part
        self._ops = make.ops
        self._name, self.act = _activation(part.act, part.hidden, make)
        sizes = {"gate": part.hidden, "up": part.hidden}
        self.gate_up = make.projection(width, sizes, part.bias, gated=self.act is None)
        self.down = make.projection(part.hidden, width, part.bias)

    def forward(self, x: Tensor, fwd: Forward) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        both = self.gate_up(x, fwd)
        if self.act is None:
            return self.down(self._ops.gated_act(both, self._name), fwd)
        gate, up = both.chunk(2, -1)
        return self.down(self.act(gate) * up, fwd)


class FeedForward(nn.Module):
    """The module of `parts.Mlp`."""

    def __init__(self, width: int, part: Mlp, make: Make) -> None:
        super().__init__()
        self.part = part
        self._ops = make.ops
        self._name, self.act = _activation(part.act, part.hidden, make)
        self.up = make.projection(width, part.hidden, part.bias)
        self.down = make.projection(part.hidden, width, part.bias)

    def forward(self, x: Tensor, fwd: Forward) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        up = self.up(x, fwd)
        return self.down(self._ops.act(up, self._name) if self.act is None else self.act(up), fwd)


def _activation(act: str | Part, size: int, make: Make) -> tuple[str, nn.Module | None]:
    """Its name if the ops know it, else its module."""
    return (act, None) if isinstance(act, str) else ("", act.build(size, make))


class Routed(NamedTuple):
    """What experts are given: x [tokens, width]; weights float32 and chosen int64 [tokens, top_k]."""

    x: Tensor
    weights: Tensor
    chosen: Tensor


class Experts(nn.Module):
    """The experts' matrices, stacked: gate_up [experts, 2 hidden, width] and down [experts, width, hidden].

    delta: set by an adapter runtime; called with what `ops.moe` gave, [tokens, width], and `Routed`.
    """

    def __init__(self, width: int, part: Moe, make: Make) -> None:
        super().__init__()
        self.hidden, self.act = part.hidden, part.act
        self.delta: ProjectionDelta | None = None
        self.gate_up = make.parameter(part.experts, 2 * part.hidden, width)
        self.down = make.parameter(part.experts, width, part.hidden)

    def pieces(self, path: str) -> Iterable[tuple[str, Place]]:
        """One matrix of one expert: `experts.3.gate.weight`."""
        for expert in range(self.gate_up.shape[0]):
            yield f"{path}.{expert}.gate.weight", Place(f"{path}.gate_up", (expert, slice(0, self.hidden)))
            yield f"{path}.{expert}.up.weight", Place(f"{path}.gate_up", (expert, slice(self.hidden, None)))
            yield f"{path}.{expert}.down.weight", Place(f"{path}.down", (expert,))


class Mixture(nn.Module):
    """The module of `parts.Moe`."""

    def __init__(self, width: int, part: Moe, make: Make) -> None:
        super().__init__()
        self.part = part
        self._ops = make.ops
        self.router = make.unquantised().projection(width, part.experts)  # a wrong choice costs more than its bits
        self.experts = Experts(width, part, make)

    def forward(self, x: Tensor, fwd: Forward) -> Tensor:
        """x [tokens, width] -> [tokens, width]."""
        part = self.part
        weights, chosen = self.router(x, fwd).float().softmax(-1).topk(part.top_k, -1)  # [tokens, top_k]
        if part.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        y = self._ops.moe(x, weights, chosen, self.experts.gate_up, self.experts.down, part.act)
        return changed(self.experts, y, Routed(x, weights, chosen), fwd.adapters)

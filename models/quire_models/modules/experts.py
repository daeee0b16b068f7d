"""The experts of a mixture: stacked matrices, or one bound matrix each where they are quantized."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from quire_models.loading.mapping import ParameterSlice
from quire_models.modules.quantized import QuantizedPieces

if TYPE_CHECKING:
    from quire_kernels.ops import BoundLinear
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.modules.projection import ProjectionDelta
    from quire_models.parts.decoder import Moe


class ExpertInputs(NamedTuple):
    """Inputs of the experts: x [tokens, width]; weights float32 and chosen int64 [tokens, top_k]."""

    x: Tensor
    weights: Tensor
    chosen: Tensor


class Experts(nn.Module):
    """Gated MLPs: gate_up [experts, 2 * intermediate_size, width], down [experts, width, intermediate_size].

    Both are emptied if the experts are quantized. keeps_weights: they are not.
    delta: set by an adapter runtime; called with the result, [tokens, width], and `ExpertInputs`.
    """

    def __init__(self, width: int, part: Moe, builder: ModuleBuilder) -> None:
        super().__init__()
        self.count, self.width = part.experts, width
        self.intermediate_size, self.act = part.intermediate_size, part.act
        self.delta: ProjectionDelta | None = None
        self.gate_up = builder.parameter(part.experts, 2 * part.intermediate_size, width)
        self.down = builder.parameter(part.experts, width, part.intermediate_size)
        self._builder, self.keeps_weights = builder, builder.linear is None
        self._pieces: dict[tuple[str, int], QuantizedPieces] = {}
        self._bound: dict[tuple[str, int], BoundLinear] = {}

    def forward(self, inputs: ExpertInputs) -> Tensor:
        """The weighted sum of each token's experts, [tokens, width]."""
        x, weights, chosen = inputs
        if not self._bound:
            return self._builder.ops.moe(x, weights, chosen, self.gate_up, self.down, self.act)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in chosen.unique().tolist():
            tokens, place = (chosen == expert).nonzero(as_tuple=True)
            hidden = self._builder.ops.gated_act(self._bound["gate_up", expert](x[tokens]), self.act)
            y = self._bound["down", expert](hidden, float32=True)
            out.index_add_(0, tokens, y * weights[tokens, place, None])
        return out.to(x.dtype)

    def product(self, parameter: str, expert: int, x: Tensor) -> Tensor:
        """x [rows, inputs] times one matrix of an expert, "gate_up" or "down", [rows, outputs]."""
        bound = self._bound.get((parameter, expert))
        return F.linear(x, getattr(self, parameter)[expert]) if bound is None else bound(x)

    def put_quantized(self, parameter: str, index: tuple[int | slice, ...], matrix: Any) -> bool:
        """Take a quantized matrix of one expert, or the gate or up of its `gate_up`, from a checkpoint."""
        if not index or not isinstance(index[0], int):
            return False
        key = parameter, index[0]
        pieces = self._pieces.setdefault(key, QuantizedPieces(getattr(self, parameter).shape[1]))
        pieces.put((index[1].start or 0) if len(index) > 1 and isinstance(index[1], slice) else 0, matrix)
        if pieces.complete:
            builder = self._builder
            self._bound[key] = pieces.bind(
                builder.ops, None, builder.dtype, parameter == "gate_up", builder.activation_bits
            )
            del self._pieces[key]
        return True

    def process_weights(self) -> None:
        """Quantize the matrices if a quantization is chosen; widen all if the checkpoint quantized only some."""
        if 0 < len(self._bound) < 2 * self.count or self._pieces:
            self._widen()
        if not self._bound and self._builder.linear is not None:
            for name, stacked in (("gate_up", self.gate_up), ("down", self.down)):
                for expert, weight in enumerate(stacked):
                    self._bound[name, expert] = self._builder.linear(weight, None, name == "gate_up")
        if self._bound and all(hasattr(bound, "unpacked") for bound in self._bound.values()):
            self.gate_up.data, self.down.data = self.gate_up.new_empty(0), self.down.new_empty(0)

    def _widen(self) -> None:
        """Write the quantized matrices to the parameters, because others are not quantized."""
        for (name, expert), bound in self._bound.items():
            stacked, matrix = getattr(self, name).data, bound
            stacked[expert] = matrix.unpacked()  # type: ignore[attr-defined]
        for (name, expert), pieces in self._pieces.items():
            for first, piece in pieces.pieces.items():
                getattr(self, name).data[expert, first : first + piece.shape[0]] = piece.dequantized(self.down.dtype)
        self._pieces, self._bound = {}, {}

    def parameter_slices(self, path: str) -> Iterable[tuple[str, ParameterSlice]]:
        """The matrices of each expert, for example `experts.3.gate.weight`."""
        gate, up = slice(0, self.intermediate_size), slice(self.intermediate_size, None)
        for expert in range(self.count):
            yield f"{path}.{expert}.gate.weight", ParameterSlice(f"{path}.gate_up", (expert, gate))
            yield f"{path}.{expert}.up.weight", ParameterSlice(f"{path}.gate_up", (expert, up))
            yield f"{path}.{expert}.down.weight", ParameterSlice(f"{path}.down", (expert,))

"""The experts of a mixture: stacked matrices, or one bound matrix each where they are quantized."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from quire_kernels.moe import ExpertMlp
from quire_kernels.ops import MatrixPlace
from quire_models.loading.mapping import ParameterSlice
from quire_models.modules.quantized import QuantizedPieces

if TYPE_CHECKING:
    from quire_kernels.moe import BoundMoe
    from quire_kernels.ops import BoundLinear
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.modules.projection import ProjectionDelta
    from quire_models.parts.moe import Moe

MATRICES = ("gate_up", "down")


class ExpertInputs(NamedTuple):
    """Inputs of the experts: x [tokens, width]; weights float32 and chosen int64 [tokens, top_k]."""

    x: Tensor
    weights: Tensor
    chosen: Tensor


class Experts(nn.Module):
    """MLPs: gate_up [experts, first_outputs, width], down [experts, width, intermediate_size]; biases
    [experts, outputs], or None. Experts without gates have only up in gate_up.

    The matrices are emptied if the op keeps a copy, or if the experts are quantized; keeps_weights: they never are.
    delta: set by an adapter runtime; called with the result, [tokens, width], and `ExpertInputs`.
    """

    def __init__(self, width: int, part: Moe, builder: ModuleBuilder) -> None:
        super().__init__()
        expert = part.expert
        held = range(part.experts) if part.held is None else part.held
        self.count, self.width, self.intermediate_size = len(held), width, expert.intermediate_size
        self.first_outputs = expert.first_outputs
        self.mlp = ExpertMlp(expert.act, expert.gated, part.weighs_inputs, None if part.held is None else held.start)
        self.delta: ProjectionDelta | None = None
        self.gate_up = builder.parameter(self.count, expert.first_outputs, width)
        self.down = builder.parameter(self.count, width, expert.intermediate_size)
        self.gate_up_bias = builder.parameter(self.count, expert.first_outputs) if expert.bias else None
        self.down_bias = builder.parameter(self.count, width) if expert.bias else None
        self._builder, self.keeps_weights = builder, builder.linear is None and builder.keep_weights
        self._pieces: dict[tuple[str, int], QuantizedPieces] = {}
        self._bound: dict[tuple[str, int], BoundLinear] = {}
        self._moe: BoundMoe | None = None

    def forward(self, inputs: ExpertInputs) -> Tensor:
        """The weighted sum of each token's experts, [tokens, width]."""
        return self.bound(*inputs)

    @property
    def bound(self) -> BoundMoe:
        """The experts, bound by the op."""
        if self._moe is None:  # not in __init__, because the weights are not loaded yet
            self.process_weights()
        assert self._moe is not None, "processing binds the experts"
        return self._moe

    def put_quantized(self, parameter: str, index: tuple[int | slice, ...], matrix: Any) -> bool:
        """Take a quantized matrix of one expert, or the gate or up of its `gate_up`, from a checkpoint."""
        if not index or not isinstance(index[0], int) or parameter not in MATRICES:
            return False
        key, rows = (parameter, index[0]), index[-1]
        pieces = self._pieces.setdefault(key, QuantizedPieces(getattr(self, parameter).shape[1]))
        pieces.put((rows.start or 0) if isinstance(rows, slice) else 0, matrix)
        if pieces.complete:
            builder = self._builder
            self._bound[key] = pieces.bind(
                builder.ops, self._bias_of(*key), builder.dtype, self._halves(parameter), builder.activation_bits
            )
            del self._pieces[key]
        return True

    def _halves(self, parameter: str) -> bool:
        return parameter == "gate_up" and self.mlp.gated

    def _bias_of(self, parameter: str, expert: int) -> Tensor | None:
        biases = getattr(self, f"{parameter}_bias")
        return None if biases is None else biases.data[expert]

    def process_weights(self) -> None:
        """Bind the experts: quantized if a quantization is chosen, widened if the checkpoint quantized only some."""
        if self._moe is not None and not self.gate_up.numel():
            return
        if 0 < len(self._bound) < 2 * self.count or self._pieces:
            self._widen()
        if not self._bound and self._builder.linear is not None:
            for name in MATRICES:
                for expert, weight in enumerate(getattr(self, name)):
                    bias = self._bias_of(name, expert)
                    self._bound[name, expert] = self._builder.linear(weight, bias, self._halves(name))
        if self._bound:
            up, down = ([self._bound[name, expert] for expert in range(self.count)] for name in MATRICES)
            self._moe = self._builder.ops.moe(up, down, self.mlp)
            copied = all(hasattr(bound, "unpacked") for bound in self._bound.values())
        else:
            self._moe = self._builder.ops.moe(self.gate_up, self.down, self.mlp, self.gate_up_bias, self.down_bias)
            copied = not self.keeps_weights and getattr(self._moe, "keeps_copy", False)
        if copied:
            self.gate_up.data, self.down.data = self.gate_up.new_empty(0), self.down.new_empty(0)

    def packed_matrices(self) -> Sequence[BoundLinear]:
        """The matrices of the experts that stand in place of the parameters, those of `down` last."""
        return () if self.gate_up.numel() else tuple(getattr(self._moe, "matrices", ()))

    def places(self, outputs: Sequence[int]) -> Sequence[MatrixPlace]:
        """What packed matrices of the experts must be. Raises ValueError for others."""
        shapes = {"gate_up": (self.first_outputs, self.width), "down": (self.width, self.intermediate_size)}
        if list(outputs) != [shape[0] for shape in shapes.values() for _ in range(self.count)]:
            raise ValueError(f"the matrices of {self.count} experts have other outputs")
        return [
            MatrixPlace(shape, self._bias_of(name, expert), self._builder.dtype, self._halves(name))
            for name, shape in shapes.items()
            for expert in range(self.count)
        ]

    def put_packed(self, matrices: Sequence[BoundLinear]) -> None:
        """Take packed matrices in place of the parameters. Biases may be written later."""
        self._moe = self._builder.ops.moe(matrices[: self.count], matrices[self.count :], self.mlp)
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
        """The matrices of each expert, for example `experts.3.gate.weight`, and stacked ones that are not fused, for
        example `experts.gate`; biases likewise, for example `experts.3.gate.bias` and `experts.gate_bias`.
        """
        up = slice(self.first_outputs - self.intermediate_size, None)
        fused = {"up": up} | ({"gate": slice(0, self.intermediate_size)} if self.mlp.gated else {})
        for kind, ending in (("weight", ""), ("bias", "_bias")):
            for name, rows in fused.items():
                yield f"{path}.{name}{ending}", ParameterSlice(f"{path}.gate_up{ending}", (slice(None), rows))
            for expert in range(self.count):
                for name, rows in fused.items():
                    slice_ = ParameterSlice(f"{path}.gate_up{ending}", (expert, rows))
                    yield f"{path}.{expert}.{name}.{kind}", slice_
                yield f"{path}.{expert}.down.{kind}", ParameterSlice(f"{path}.down{ending}", (expert,))

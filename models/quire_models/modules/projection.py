"""Projection: the linear layer of all parts, with fused matrices and adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from quire_kernels.ops import MatrixPlace
from quire_models.loading.mapping import ParameterSlice
from quire_models.modules.quantized import JoinedLinear, QuantizedPieces

if TYPE_CHECKING:
    from quire_kernels.ops import BoundLinear, LinearOp
    from quire_models.modules.builder import ModuleBuilder


class ProjectionDelta(Protocol):
    """What an adapter runtime sets as attribute `delta` of a module that adapters can change."""

    def __call__(self, y: Tensor, x: Any, adapters: Any) -> Tensor:
        """Return `y` with the adapters applied, possibly in place; rows of the base model must not change.

        y: [tokens, outputs], the base result. x: the module's input: [tokens, inputs] for a projection, ids [tokens]
        for an embedding table, `quire_models.modules.experts.ExpertInputs` for experts. adapters:
        `ForwardBatch.adapters` of this step; for modules after the hidden states, rows instead of
        tokens, and the `adapters` that `DecoderModel.logits` got. Optional attribute of an implementation:
        `is_batch_invariant(adapters)`: whether no bit of a row depends on the other rows.
        """
        ...


class LayerContext(Protocol):
    """What a module gets beside its inputs: a step (`quire_models.ForwardBatch`) or a context of a tower."""

    @property
    def adapters(self) -> Any:
        """What the runtime bound for these inputs; None if no adapter is active."""
        ...


class Projection(nn.Module):
    """y = x weightᵀ + bias, for one matrix or several fused ones.

    inputs, outputs: sizes of the last dimensions of x and y. slices: the outputs of each fused matrix
    ("q" -> slice(0, 576)); empty for a single matrix.
    delta: set by an adapter runtime; None costs one attribute test.
    reduce: adds up the outputs of several ranks, each of which has some of the inputs (`quire_models.sharding`).
    is_quantized: whether `--quantization` applies to it.
    keeps_weights: whether the parameter stays when an op has packed it.
    holds_quantized_pieces: whether the matrix came quantized from a checkpoint, or packed, and the parameter never had
    it.
    is_absorbed: whether its owner multiplies by parts of the matrix instead of calling it, so that the host must know
    which adapters change it.
    """

    is_absorbed = False

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        sizes: Mapping[str, int],
        builder: ModuleBuilder,
        gated: bool = False,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.outputs, self.inputs = weight.shape
        self._gated, self.keeps_weights = gated, builder.keep_weights
        self.slices: dict[str, slice] = {}
        self.delta: ProjectionDelta | None = None
        self.reduce: Callable[[Any], Any] | None = None
        self._ops, self._activation_bits, self._dtype = builder.ops, builder.activation_bits, builder.dtype
        self._plain_linear = builder.plain_linear
        self._linear: LinearOp = builder.linear or self._plain_linear
        self.is_quantized = builder.linear is not None
        self._quantized = QuantizedPieces(self.outputs)
        self.holds_quantized_pieces = False
        start = 0
        for name, size in sizes.items():
            self.slices[name] = slice(start, start + size)
            start += size
        self.multiply: BoundLinear = self._bind_and_multiply

    def process_weights(self) -> None:
        """Bind the weight again after it has changed. If the op keeps its own copy, the parameter may be emptied."""
        if self.holds_quantized_pieces:
            return
        if self._quantized.pieces:
            self._widen_pieces()
        self.multiply = self._linear(self.weight, self.bias, self._gated)
        if not self.keeps_weights and hasattr(self.multiply, "unpacked"):
            self.weight.data = self.weight.new_empty(0, self.inputs)

    def _bind_and_multiply(self, x: Tensor, float32: bool = False) -> Tensor:
        self.process_weights()  # not in __init__, because the weights are not loaded yet
        return self.multiply(x, float32)

    def put_quantized(self, parameter: str, index: tuple[int | slice, ...], matrix: Any) -> bool:
        """Take a quantized matrix, or one of several fused ones, from a checkpoint in place of the parameter."""
        pieces = self._quantized
        pieces.put(index[0].start if index and isinstance(index[0], slice) else 0, matrix)
        if pieces.complete:  # bound at once, so that the unpacked codes are freed before the next matrix is read
            self.multiply = pieces.bind(self._ops, self.bias, self._dtype, self._gated, self._activation_bits)
            self.weight.data = self.weight.new_empty(0, self.inputs)
            self._quantized, self.holds_quantized_pieces = QuantizedPieces(self.outputs), True
        return True

    def packed_matrices(self) -> Sequence[BoundLinear]:
        """The matrices that stand in place of the parameter; none while it is needed."""
        if self.weight.numel() or self.keeps_weights:
            return ()
        return self.multiply.parts if isinstance(self.multiply, JoinedLinear) else (self.multiply,)

    def places(self, outputs: Sequence[int]) -> Sequence[MatrixPlace]:
        """What packed matrices with these outputs must be. Raises ValueError if they cannot take the place of the
        parameter.
        """
        if sum(outputs) != self.outputs or min(outputs) < 1:
            raise ValueError(f"{self.outputs} outputs are not {list(outputs)}")
        biases = [None] * len(outputs) if self.bias is None else self.bias.data.split(list(outputs))
        gated = self._gated and len(outputs) == 1
        return [MatrixPlace((n, self.inputs), b, self._dtype, gated) for n, b in zip(outputs, biases, strict=True)]

    def put_packed(self, matrices: Sequence[BoundLinear]) -> None:
        """Take packed matrices in place of the parameter. Its bias may be written later."""
        sizes = [matrix.packed.outputs for matrix in matrices]  # type: ignore[attr-defined]
        self.multiply = matrices[0] if len(matrices) == 1 else JoinedLinear(matrices, sizes)
        self.weight.data, self.holds_quantized_pieces = self.weight.new_empty(0, self.inputs), True

    def _widen_pieces(self) -> None:
        """Write the quantized pieces to the parameter: the others of this fused matrix are not quantized."""
        for first, piece in self._quantized.pieces.items():
            self.weight.data[first : first + piece.shape[0]] = piece.dequantized(self._dtype)
        self._quantized = QuantizedPieces(self.outputs)

    def quantize_with(self, linear: LinearOp) -> None:
        """Use this op for the matrix instead of the builder's. To be called before it is bound."""
        self._linear = linear

    def without_quantization(self) -> None:
        """Use the plain op for this matrix, whatever `--quantization` says. To be called before it is bound."""
        self._linear = self._plain_linear

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of the weight, [len(ids), inputs]; ids int64. May be called from any thread."""
        weight = self.weight.data  # read once, because the first step may empty it concurrently
        if len(weight) or not hasattr(self.multiply, "unpacked"):
            return weight.index_select(0, ids)
        found: Tensor = self.multiply.unpacked(ids)
        return found

    def bind(self, weight: Tensor) -> BoundLinear:
        """Bind another weight [outputs, inputs], one that an adapter brings, with this projection's bias and op."""
        return self._linear(weight, self.bias, self._gated)

    def forward(self, x: Tensor, fwd: LayerContext) -> Tensor:
        """x [tokens, inputs] -> [tokens, outputs]."""
        y = apply_adapters(self, self.multiply(x), x, fwd.adapters)
        return y if self.reduce is None else self.reduce(y)

    def parameter_slices(self, path: str) -> Iterable[tuple[str, ParameterSlice]]:
        """Names of the fused matrices, beside this module: `attn.q` for the q in `attn.qkv`."""
        parent = path.rpartition(".")[0]
        for name, rows in self.slices.items():
            for kind in ("weight",) if self.bias is None else ("weight", "bias"):
                yield f"{parent}.{name}.{kind}", ParameterSlice(f"{path}.{kind}", (rows,))


def apply_adapters(module: Any, y: Tensor, x: Any, adapters: Any) -> Tensor:
    """The module's result `y` for input `x`, with the adapters applied if some are active."""
    return y if module.delta is None or adapters is None else module.delta(y, x, adapters)


def is_batch_invariant(module: Any, adapters: Any) -> bool:
    """Whether no bit of a row of a module's result depends on other rows, adapters included. module: a projection,
    an embedding table, a norm, or None.
    """
    delta, multiply = getattr(module, "delta", None), getattr(module, "multiply", None)
    if multiply is not None and not getattr(multiply, "batch_invariant", False):
        return False
    if delta is None or adapters is None:
        return True
    of_delta = getattr(delta, "is_batch_invariant", None)
    return of_delta is not None and bool(of_delta(adapters))


def adaptable_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that a runtime may set a `delta` on, by path: projections, embedding tables and experts."""
    return {path: module for path, module in model.named_modules() if hasattr(module, "delta")}


def projections(model: nn.Module) -> dict[str, tuple[Projection, slice | None]]:
    """Every matrix of a model by its own name, fused or not, as adapters name them.

    `blocks.0.attn.q` -> (the fused projection, its slice of the outputs); `blocks.0.attn.o` and
    `blocks.0.attn.qkv` -> (the projection, None). `WeightsMapper.rename` converts a checkpoint's module name to these.
    """
    found: dict[str, tuple[Projection, slice | None]] = {}
    for path, module in model.named_modules():
        if isinstance(module, Projection):
            found[path] = (module, None)
            parent = path.rpartition(".")[0]
            found.update({f"{parent}.{name}": (module, rows) for name, rows in module.slices.items()})
    return found

"""Projection: the linear layer of all parts, with fused matrices and adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, nn

from quire_models.loading.mapping import ParameterSlice

if TYPE_CHECKING:
    from quire_kernels.ops import BoundLinear, LinearOp


class ProjectionDelta(Protocol):
    """What an adapter runtime sets as attribute `delta` of a module that adapters can change."""

    def __call__(self, y: Tensor, x: Any, adapters: Any) -> Tensor:
        """Return `y` with the adapters applied, possibly in place; rows of the base model must not change.

        y: [tokens, outputs], the base result. x: the module's input: [tokens, inputs] for a projection, ids [tokens]
        for an embedding table, `quire_models.modules.mlp.ExpertInputs` for experts. adapters: `ForwardBatch.adapters`
        of this step; for modules after the hidden states, rows instead of tokens, and the `adapters` that
        `DecoderModel.logits` got.
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
    """

    def __init__(
        self,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        sizes: Mapping[str, int],
        linear: LinearOp,
        gated: bool = False,
        keeps_weight: bool = True,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.outputs, self.inputs = weight.shape
        self._gated, self._keeps_weight = gated, keeps_weight
        self.slices: dict[str, slice] = {}
        self.delta: ProjectionDelta | None = None
        self._linear = linear
        start = 0
        for name, size in sizes.items():
            self.slices[name] = slice(start, start + size)
            start += size
        self.multiply: BoundLinear = self._bind_and_multiply

    def process_weights(self) -> None:
        """Bind the weight again after it has changed. If the op keeps its own copy, the parameter may be emptied."""
        self.multiply = self._linear(self.weight, self.bias, self._gated)
        if not self._keeps_weight and hasattr(self.multiply, "unpacked"):
            self.weight.data = self.weight.new_empty(0, self.inputs)

    def _bind_and_multiply(self, x: Tensor, float32: bool = False) -> Tensor:
        self.process_weights()  # not in __init__, because the weights are not loaded yet
        return self.multiply(x, float32)

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
        return apply_adapters(self, self.multiply(x), x, fwd.adapters)

    def parameter_slices(self, path: str) -> Iterable[tuple[str, ParameterSlice]]:
        """Names of the fused matrices, beside this module: `attn.q` for the q in `attn.qkv`."""
        parent = path.rpartition(".")[0]
        for name, rows in self.slices.items():
            for kind in ("weight",) if self.bias is None else ("weight", "bias"):
                yield f"{parent}.{name}.{kind}", ParameterSlice(f"{path}.{kind}", (rows,))


def apply_adapters(module: Any, y: Tensor, x: Any, adapters: Any) -> Tensor:
    """The module's result `y` for input `x`, with the adapters applied if some are active."""
    return y if module.delta is None or adapters is None else module.delta(y, x, adapters)


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

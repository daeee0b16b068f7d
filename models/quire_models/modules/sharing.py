"""Modules of several blocks that use the same matrices: each block has its own module, the matrices exist once."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from quire_kernels.ops import BoundLinear
from quire_models.modules.builder import ModuleBuilder
from quire_models.modules.projection import Projection


class RepeatedProjection(Projection):
    """Another projection's matrix, without a copy of it and with adapters of its own."""

    def __init__(self, source: Projection) -> None:
        nn.Module.__init__(self)
        for name, held in (("_source", source), ("weight", source.weight), ("bias", source.bias)):
            object.__setattr__(self, name, held)  # unregistered, so that the matrix has one name and is packed once
        self.outputs, self.inputs, self.slices = source.outputs, source.inputs, source.slices
        self.delta = self.reduce = None
        self.keeps_weights, self.is_quantized, self.holds_quantized_pieces = True, False, False
        self.multiply = self._multiply_source

    def _multiply_source(self, x: Tensor, float32: bool = False) -> Tensor:
        return self._source.multiply(x, float32)

    def process_weights(self) -> None:
        """Do nothing: the source binds the matrix."""

    def packed_matrices(self) -> Sequence[BoundLinear]:
        return ()

    def rows(self, ids: Tensor) -> Tensor:
        return self._source.rows(ids)

    def bind(self, weight: Tensor) -> BoundLinear:
        return self._source.bind(weight)

    _source: Projection


@dataclass(frozen=True)
class SharingBuilder(ModuleBuilder):
    """Builds the same part several times with the same matrices and parameters: those that the first build has made.

    made: projections and parameters in the order in which they were asked for. again: what is left of them for this
    build, None in the first one.
    """

    made: list[Any] | None = None
    again: Iterator[Any] | None = None

    def parameter(self, *shape: int) -> nn.Parameter:
        """A parameter with uninitialized memory, or that of the first build."""
        assert self.made is not None
        if self.again is not None:
            found: nn.Parameter = next(self.again)
            return found
        self.made.append(super().parameter(*shape))
        return self.made[-1]  # type: ignore[no-any-return]

    def projection(
        self, inputs: int, outputs: int | Mapping[str, int], bias: bool = False, gated: bool = False
    ) -> Projection:
        """A matrix, or that of the first build."""
        assert self.made is not None
        if self.again is not None:
            return RepeatedProjection(next(self.again))
        start = len(self.made)
        found = super().projection(inputs, outputs, bias, gated)
        self.made[start:] = [found]  # in place of its parameters
        return found


def sharing(builder: ModuleBuilder, key: Hashable) -> SharingBuilder:
    """A builder that gives all parts of a model that are built with the same key the same matrices."""
    again = iter(builder.shared[key]) if key in builder.shared else None
    made = builder.shared.setdefault(key, [])
    return SharingBuilder(
        **{each.name: getattr(builder, each.name) for each in fields(builder)}, made=made, again=again
    )

"""ModuleBuilder: creates every matrix of a model, so that quantization and packing apply to all parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from quire_kernels.ops import LinearOp
from quire_kernels.select import Ops
from quire_models.modules.projection import Projection
from quire_models.parts.rope_config import Rope
from quire_models.step.rope import RotaryAngles


@dataclass(frozen=True)
class ModuleBuilder:
    """The ops, data type and device that a model is built for.

    layer: index of the block being built, which is its index in the KV cache.
    linear: op of a quantization that binds the matrices, None = `plain_linear`.
    many_rows: whether matrices are applied to whole prompts or images at once.
    keep_weights: whether matrices stay readable as parameters after an op has packed a copy of them.
    activation_bits: bits of the inputs of matrices that a checkpoint brings quantized (`quire_kernels.ops`).
    shared: objects that blocks share, by the part that describes them.
    """

    ops: Ops
    dtype: torch.dtype
    device: torch.device
    layer: int = 0
    linear: LinearOp | None = None
    many_rows: bool = False
    keep_weights: bool = True
    activation_bits: int = 8
    shared: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    def at_layer(self, layer: int) -> ModuleBuilder:
        """A copy for the block with this index."""
        return replace(self, layer=layer)

    def unquantized(self) -> ModuleBuilder:
        """A copy for matrices that must not be quantized."""
        return replace(self, linear=None)

    def for_many_rows(self) -> ModuleBuilder:
        """A copy for matrices that are applied to whole prompts or images at once."""
        return replace(self, many_rows=True)

    @property
    def plain_linear(self) -> LinearOp:
        """The op that binds matrices that are not quantized."""
        return self.ops.linear_batched if self.many_rows else self.ops.linear

    def parameter(self, *shape: int) -> nn.Parameter:
        """A parameter with uninitialized memory."""
        return nn.Parameter(torch.empty(*shape, dtype=self.dtype, device=self.device), requires_grad=False)

    def constant(self, values: Sequence[float]) -> Tensor:
        """Numbers of a part as a float32 tensor, which is no parameter."""
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def projection(
        self, inputs: int, outputs: int | Mapping[str, int], bias: bool = False, gated: bool = False
    ) -> Projection:
        """A matrix, or several matrices with the same input fused into one: `outputs` gives their names and sizes.

        gated: two matrices of equal size whose outputs `gated_act` reads.
        """
        sizes = {} if isinstance(outputs, int) else dict(outputs)
        total = outputs if isinstance(outputs, int) else sum(sizes.values())
        weight, added = self.parameter(total, inputs), self.parameter(total) if bias else None
        return Projection(weight, added, sizes, self, gated)

    def projection_of(self, weight: nn.Parameter, bias: bool = False) -> Projection:
        """A matrix that shares its parameter with another module, such as a tied head; its bias is its own."""
        return Projection(weight, self.parameter(len(weight)) if bias else None, {}, self)

    def angles(self, rope: Rope) -> RotaryAngles:
        """The rotary angles of `rope`; the same object for equal ropes."""
        if rope not in self.shared:
            self.shared[rope] = RotaryAngles(rope, self.device)
        angles: RotaryAngles = self.shared[rope]
        return angles

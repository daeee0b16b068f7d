"""The modules of `GridBlock`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from quire.plugin import RMSNorm
from quire_models import ModuleBuilder

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.vision.gemma4.encoder import GridBlock

ROTATION = "rotation of patches"
"""Key in `TowerContext.step_cache`: (cos, sin), each [patches, 1, 2, head_dim / 4], for columns and rows."""


class ClippedLinear(nn.Module):
    """A matrix whose inputs and outputs are clamped. input_min, …: [1]."""

    def __init__(self, inputs: int, outputs: int, clipped: bool, builder: ModuleBuilder) -> None:
        super().__init__()
        self.linear = builder.projection(inputs, outputs)
        self._clipped = clipped
        if clipped:
            self.input_min, self.input_max = builder.parameter(1), builder.parameter(1)
            self.output_min, self.output_max = builder.parameter(1), builder.parameter(1)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [tokens, inputs] -> [tokens, outputs]."""
        if not self._clipped:
            plain: Tensor = self.linear(x, context)
            return plain
        found: Tensor = self.linear(x.clamp(self.input_min, self.input_max), context)
        return found.clamp(self.output_min, self.output_max)


class GridAttention(nn.Module):
    """Attention of each patch to all patches of its image."""

    def __init__(self, width: int, part: GridBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self._ops, self._head_dim = builder.ops, part.head_dim
        size = part.heads * part.head_dim
        self.q, self.k, self.v = (ClippedLinear(width, size, part.clipped, builder) for _ in range(3))
        self.o = ClippedLinear(size, width, part.clipped, builder)
        self.q_norm = part.norm.build(part.head_dim, builder)
        self.k_norm = part.norm.build(part.head_dim, builder)
        self._v_norm = RMSNorm(part.norm.eps, affine=False).build(part.head_dim, builder)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [patches, width] -> [patches, width]."""
        q, k, v = (matrix(x, context).unflatten(-1, (-1, self._head_dim)) for matrix in (self.q, self.k, self.v))
        cos, sin = context.step_cache[ROTATION]
        q, k = _rotated(self.q_norm(q), cos, sin), _rotated(self.k_norm(k), cos, sin)
        seen = self._ops.row_attention(q, k, self._v_norm(v), context.rows, 1.0, None)
        found: Tensor = self.o(seen.flatten(1), context)
        return found


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [patches, heads, head_dim]: the first half of a head rotates by the column, the second by the row."""
    first, second = x.unflatten(-1, (2, 2, -1)).unbind(-2)  # [patches, heads, 2, head_dim / 4]
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.stack(turned, -2).flatten(-3).to(x.dtype)


class GridMlp(nn.Module):
    """A gated MLP: down(act(gate(x)) * up(x))."""

    def __init__(self, width: int, part: GridBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self._ops, self._act = builder.ops, part.act
        self.gate, self.up = (ClippedLinear(width, part.intermediate_size, part.clipped, builder) for _ in range(2))
        self.down = ClippedLinear(part.intermediate_size, width, part.clipped, builder)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [patches, width] -> [patches, width]."""
        gate = self._ops.act(self.gate(x, context), self._act)
        found: Tensor = self.down(gate * self.up(x, context), context)
        return found


class GridBlockModule(nn.Module):
    """The module that the part `GridBlock` builds."""

    def __init__(self, width: int, part: GridBlock, builder: ModuleBuilder) -> None:
        super().__init__()
        self.attn, self.mlp = GridAttention(width, part, builder), GridMlp(width, part, builder)
        self.attn_in, self.attn_out = part.norm.build(width, builder), part.norm.build(width, builder)
        self.mlp_in, self.mlp_out = part.norm.build(width, builder), part.norm.build(width, builder)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [patches, width] -> [patches, width]."""
        x = x + self.attn_out(self.attn(self.attn_in(x), context))
        found: Tensor = x + self.mlp_out(self.mlp(self.mlp_in(x), context))
        return found

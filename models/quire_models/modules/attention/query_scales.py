"""Factors of queries by position: computed once per step, shared by all blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from quire_kernels.select import Ops
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.attention.query_scaling import QueryScaling
    from quire_models.step.forward_batch import ForwardBatch

FIRST_POSITIONS = 4096
"""Number of positions of the first table; a longer seq doubles it."""


class QueryScales:
    """The factors of `QueryScaling` as cosines, with sines of 0: a rotation by them multiplies a head.

    half: half the head dimension. So fused blocks compute them as they compute rotary embeddings.
    """

    def __init__(self, part: QueryScaling, half: int, device: torch.device) -> None:
        self._part, self._half, self._device = part, half, device
        self._table: tuple[Tensor, Tensor] | None = None

    def for_step(self, fwd: ForwardBatch) -> tuple[Tensor, Tensor]:
        """(factors, zeros), both float32 [tokens, half]."""
        if self not in fwd.step_cache:
            fwd.step_cache[self] = self._factors(fwd.positions)
        found: tuple[Tensor, Tensor] = fwd.step_cache[self]
        return found

    def table(self, fwd: ForwardBatch) -> tuple[Tensor, Tensor]:
        """(factors, zeros) of positions 0, 1, …, covering at least the step: float32 [positions, half]."""
        if self._table is None or len(self._table[0]) < fwd.rows.max_context:
            length = max(FIRST_POSITIONS, 2 * fwd.rows.max_context)
            self._table = self._factors(torch.arange(length, device=self._device))
        return self._table

    def _factors(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        part = self._part
        steps = ((positions.float() + part.offset) / part.floor).floor()
        factors = (1 + part.factor * torch.log(steps + 1))[:, None].repeat(1, self._half)
        return factors, torch.zeros_like(factors)


def query_scales(part: QueryScaling | None, dim: int, builder: ModuleBuilder) -> QueryScales | None:
    """The factors of queries of `dim` dimensions; the same object for equal parts, None without one."""
    if part is None:
        return None
    if (part, dim) not in builder.shared:
        builder.shared[part, dim] = QueryScales(part, dim // 2, builder.device)
    found: QueryScales = builder.shared[part, dim]
    return found


def scaled_queries(q: Tensor, scales: QueryScales | None, ops: Ops, fwd: ForwardBatch) -> Tensor:
    """q [tokens, heads, dim], multiplied in place."""
    if scales is None:
        return q
    cos, sin = scales.for_step(fwd)
    return ops.rotary(q, q[:, :0], cos, sin)[0]

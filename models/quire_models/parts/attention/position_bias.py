"""Biases of relative positions (T5, arXiv 1910.10683): a frozen description that imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire_models.modules.attention.position_bias import PositionBiasTable
    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True)
class PositionBias:
    """A learned number for each head that is added to the scores of keys at similar distances.

    buckets: classes of distances (relative_attention_num_buckets): half of them for one distance each, the others for
    ranges that grow with the distance. reach: distance from which on all keys are in the last one
    (relative_attention_max_distance). bidirectional: earlier and later keys have half of the buckets each; otherwise
    there are no later ones. shared: all blocks use the same numbers, which have the name of the first (T5, not UMT5).
    """

    buckets: int = 32
    reach: int = 128
    bidirectional: bool = False
    shared: bool = True

    def build(self, heads: int, builder: ModuleBuilder) -> PositionBiasTable:
        """The module for attention with so many heads; the same for all blocks if they share it."""
        from quire_models.modules.attention.position_bias import PositionBiasTable

        if not self.shared:
            return PositionBiasTable(heads, self, builder)
        if self not in builder.shared:
            builder.shared[self] = PositionBiasTable(heads, self, builder)
        found: PositionBiasTable = builder.shared[self]
        return found

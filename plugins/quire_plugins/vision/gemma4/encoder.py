"""The tower of Gemma 4 as parts: patches of an image of any size, with positions by column and row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire.plugin import RMSNorm

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder


@dataclass(frozen=True, kw_only=True)
class GridBlock:
    """Attention and a gated MLP, with norms before and after each.

    Queries, keys and values of each head are normalized; scores are not scaled. clipped: inputs and outputs of each
    matrix are clamped to limits in the checkpoint.
    """

    heads: int
    head_dim: int
    intermediate_size: int
    act: str
    norm: RMSNorm
    clipped: bool = False

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x, context) -> [tokens, width]; the tower has put the rotary angles into `context.step_cache`."""
        from quire_plugins.vision.gemma4.blocks import GridBlockModule

        return GridBlockModule(width, self, builder)


@dataclass(frozen=True, kw_only=True)
class PooledGridTower:
    """Patches through blocks; then the mean of each square of pool × pool patches, normalized and projected.

    positions: rows of the table of positions of each axis. theta: base of the rotary frequencies. standardized: a bias
    and a scale in the checkpoint are applied to the means. norm: before the projection. An item has `patches`, floats
    [rows × columns, patch² × 3] from 0 to 1, and `grid`, int64 [2], its rows and columns, both multiples of pool.
    """

    patch: int
    width: int
    positions: int
    blocks: tuple[GridBlock, ...]
    theta: float
    pool: int
    standardized: bool
    norm: RMSNorm

    def build(self, width: int, builder: ModuleBuilder) -> nn.Module:
        """The tower; its rows have this width."""
        from quire_plugins.vision.gemma4.tower import PooledGridModule

        return PooledGridModule(width, self, builder)

"""Modules of towers over grids of patches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from quire_models.towers.grid_positions import Grid

DUMMY_SIDE = 36
"""Side of the dummy image in squares: with squares of 28 pixels, an image of about a million pixels."""

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.parts.patch_grid import PatchGridTower, PatchMerger
    from quire_models.towers.tower import Items, TowerCall, TowerContext


class PatchMergerModule(nn.Module):
    """The module that the part `parts.patch_grid.PatchMerger` builds."""

    def __init__(self, width: int, rows_width: int, part: PatchMerger, builder: ModuleBuilder) -> None:
        super().__init__()
        self._ops = builder.ops
        self._inputs = width * part.merge**2
        self._joined = part.norm_joined
        self.norm = part.norm.build(self._inputs if part.norm_joined else width, builder)
        self.up = builder.projection(self._inputs, self._inputs, bias=True)
        self.down = builder.projection(self._inputs, rows_width, bias=True)

    def forward(self, x: Tensor, context: TowerContext) -> Tensor:
        """x [patches, width], the patches of a square contiguous -> [squares, rows_width]."""
        squares = self.norm(x.view(-1, self._inputs)) if self._joined else self.norm(x).view(-1, self._inputs)
        return self.down(self._ops.act(self.up(squares, context), "gelu"), context)


class PatchGridEncoder(nn.Module):
    """The module that the part `parts.patch_grid.PatchGridTower` builds, which documents the input tensors."""

    def __init__(self, rows_width: int, part: PatchGridTower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.part = part
        self.patches = builder.projection(part.channels * part.depth * part.patch**2, part.width, part.patch_bias)
        self.positions = builder.parameter(part.positions**2, part.width) if part.positions else None
        self.blocks = nn.ModuleList(block.build(part.width, builder.at_layer(i)) for i, block in enumerate(part.blocks))
        width = rows_width // (1 + len(part.deepstack))
        self.merger = part.merger.build(part.width, width, builder)
        self.deepstack = nn.ModuleList(
            part.deepstack_merger.build(part.width, width, builder) for _ in part.deepstack if part.deepstack_merger
        )
        self._angles = builder.angles(part.rope)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows [squares, rows_width] of each item."""
        shapes = torch.stack([item["grid"] for item in items]).tolist()
        grids = [Grid(frames, height, width, self.part.merger.merge) for frames, height, width in shapes]
        order, contexts = self._order_and_contexts(grids, call)
        x = self.patches(torch.cat([self._flat(item["patches"]) for item in items]), contexts[0])
        if self.positions is not None and self.part.positions:
            x = x + torch.cat([_stretched(self.positions, self.part.positions, grid) for grid in grids])
        x = _reordered_squares(x, order, self.part.merger.merge) if order is not None else x
        counts = [grid.num_squares for grid in grids]
        further = []
        for i, (block, context) in enumerate(zip(self.blocks, contexts, strict=True)):
            x = block(x, context)
            if i in self.part.deepstack:
                further.append(self.deepstack[self.part.deepstack.index(i)](x, call.context(counts)))
        rows: Tensor = torch.cat([self.merger(x, call.context(counts)), *further], -1)
        if order is not None:
            rows = torch.empty_like(rows).index_copy_(0, order, rows)
        return list(rows.split(counts))

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """An image of DUMMY_SIDE × DUMMY_SIDE squares."""
        part, like = self.part, self.patches.weight
        side = DUMMY_SIDE * part.merger.merge
        patches = like.new_zeros(side**2, part.channels, 1, part.patch**2)
        return {"patches": patches, "grid": torch.tensor([1, side, side], device=like.device)}, DUMMY_SIDE**2

    def _flat(self, patches: Tensor) -> Tensor:
        """[patches, channels, depth or 1, patch²] -> [patches, channels × depth × patch²]."""
        count, channels, _, size = patches.shape
        return patches.expand(count, channels, self.part.depth, size).flatten(1)

    def _order_and_contexts(self, grids: list[Grid], call: TowerCall) -> tuple[Tensor | None, list[TowerContext]]:
        """Order in which squares are computed, int64 [squares], None = unchanged; and the context of each block."""
        part = self.part
        counts = [grid.num_patches for grid in grids]
        within_frames = call.context(counts, [n for grid in grids for n in grid.frame_lens])
        positions = np.concatenate([grid.positions for grid in grids], 1)  # [2, patches]
        if part.window is None:
            self._set_angles([within_frames], positions)
            return None, [within_frames] * len(part.blocks)
        windows = [grid.windows(part.window) for grid in grids]
        first = np.cumsum([0, *(grid.num_squares for grid in grids)])
        order = np.concatenate([begin + squares for begin, (squares, _) in zip(first, windows, strict=False)])
        within_windows = call.context(counts, [n for _, lens in windows for n in lens])
        square = part.merger.merge**2
        self._set_angles([within_frames, within_windows], positions.reshape(2, -1, square)[:, order].reshape(2, -1))
        contexts = [within_frames if i in part.full_attention else within_windows for i in range(len(part.blocks))]
        return torch.from_numpy(order).to(self.patches.weight.device), contexts

    def _set_angles(self, contexts: list[TowerContext], positions: np.ndarray) -> None:
        """Set the rotary angles of these contexts for patches at these positions, int64 [2, patches]."""
        angles = self._angles.for_positions(torch.from_numpy(positions).to(self.patches.weight.device))
        for context in contexts:
            context.step_cache[self._angles] = angles


def _stretched(table: Tensor, side: int, grid: Grid) -> Tensor:
    """Positions of a grid's patches: bilinear interpolation in a table [side², width] whose corners are the grid's."""
    taps, weights = [], []
    for index, length in zip(grid.positions, (grid.height, grid.width), strict=True):
        place = torch.from_numpy(index).float() * (side - 1) / max(length - 1, 1)
        low = place.floor()
        taps.append(torch.stack([low, (low + 1).clamp(max=side - 1)]).long())  # [2, patches]
        weights.append(torch.stack([1 - (place - low), place - low]))
    rows = (taps[0][:, None] * side + taps[1][None]).flatten(0, 1).to(table.device)  # [4, patches]
    shares = (weights[0][:, None] * weights[1][None]).flatten(0, 1).to(table)
    return torch.stack([table[row] * share[:, None] for row, share in zip(rows, shares, strict=True)]).sum(0)


def _reordered_squares(x: Tensor, order: Tensor, merge: int) -> Tensor:
    """x [patches, width] with its squares in another order."""
    return x.view(-1, merge**2 * x.shape[-1]).index_select(0, order).view_as(x)

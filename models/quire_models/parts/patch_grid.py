"""Parts of towers over grids of patches (Qwen-VL), for images of any size and for videos: descriptions without torch.

An image is cut into patches of one size; merge × merge neighboring patches become one embedding row. A grid
(frames, rows, columns) counts patches; a frame may be several images deep. Patches are ordered square by square, so
that the patches of a square are contiguous:

    frame, row of squares, column of squares, row within, column within
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from quire_models.parts.decoder import Block, Part
from quire_models.parts.rope_config import Rope

if TYPE_CHECKING:
    from torch import nn

    from quire_models.modules.builder import ModuleBuilder
    from quire_models.towers.patch_grid import PatchGridEncoder


@dataclass(frozen=True, kw_only=True)
class PatchMerger:
    """Norm, then down(gelu(up(x))) of a square's concatenated patches; the intermediate width equals the input's.

    merge: patches of a square's side (spatial_merge_size). norm_joined: the norm is of the concatenated patches.
    """

    norm: Part
    merge: int
    norm_joined: bool = False

    def build(self, width: int, rows_width: int, builder: ModuleBuilder) -> nn.Module:
        """A module (x [patches, width], context of the squares) -> [squares, rows_width]."""
        from quire_models.towers.patch_grid import PatchMergerModule

        return PatchMergerModule(width, rows_width, self, builder)


@dataclass(frozen=True, kw_only=True)
class PatchGridTower:
    """Blocks over patches with 2-D rotary positions (row and column in the grid); then squares of patches become rows.

    Attention stays within a frame. Input tensors of an item: `patches`, floats [frames × rows × columns, channels,
    depth, patch²] with a depth of `depth`, or of 1 if all images of a frame are the same; and `grid`, int64 [3].
    patch: pixels of a patch's side (patch_size). width: hidden size. blocks: with `RowAttention` that rotates by
    `rope`. window: side, in squares, of the windows that attention stays within; None = no windows. full_attention:
    indices of the blocks without windows (fullatt_block_indexes). patch_bias: of the patch projection. positions: side
    of a square table of learned positions, which is stretched over each image; None = no such table. deepstack:
    indices of the blocks after which `deepstack_merger` makes further features of each square. They follow the square's
    row in the width: a tower's row is as wide as 1 + len(deepstack) rows of the decoder (`Decoder.deepstack`).
    """

    channels: int
    depth: int
    patch: int
    width: int
    blocks: tuple[Block, ...]
    rope: Rope
    merger: PatchMerger
    window: int | None = None
    full_attention: frozenset[int] = frozenset()
    patch_bias: bool = False
    positions: int | None = None
    deepstack: tuple[int, ...] = ()
    deepstack_merger: PatchMerger | None = None

    def build(self, width: int, builder: ModuleBuilder) -> PatchGridEncoder:
        """The tower; its rows have this width."""
        from quire_models.towers.patch_grid import PatchGridEncoder

        return PatchGridEncoder(width, self, builder)

"""What the attention kernels run over: tiles of the step's tokens, and the shapes of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.tuning.launch_table import LaunchTable
from quire_kernels.triton_gpu.tuning.settings import AttentionSettings

FEW = 16
"""Maximum tokens of a row whose context is split over programs."""

PROGRAMS = 256
"""Programs over which the context of one token is split, all key-value heads together: two a multiprocessor."""

MIN_SPLIT = 128
"""Minimum positions of a split where there are 8 key-value heads or more."""


FEW_PROGRAMS, MIN_PROGRAMS = 2048, 4
"""Programs of a launch beyond which fewer divide the splits of a tile among them, and the fewest of those: programs
that find no split cost time, but one long context among many short ones needs several.
"""


@dataclass(frozen=True)
class Blocks:
    """Shape of a program. m: pairs of token and query head. n: keys at a time. ahead: how many times n keys are being
    read while others are used.
    """

    m: int
    n: int
    warps: int
    ahead: int

    @property
    def stages(self) -> int:
        """Stages of the loop for the compiler, which divides them among the reading of page numbers and of keys."""
        return 2 + 2 * self.ahead


@dataclass(frozen=True)
class Widths:
    """Widths of keys (d) and values (v), and the blocks in which a program holds them: keys in d_block + d_tail.

    from_k: values are the first d_block elements of the keys. unit: elements of which all strides are multiples: with
    8, keys are read in pieces of 16 bytes.
    """

    d: int
    v: int
    d_block: int
    d_tail: int
    v_block: int
    from_k: bool
    unit: int = 8

    @classmethod
    def from_strides(cls, d: int, v: int, value_dim: int | None, strides: Sequence[int]) -> Widths:
        block = max(16, _power_of_two(d + 1) // 2)  # the largest power of two up to d
        tail = max(16, _power_of_two(d - block)) if d > block else 0
        if block + tail >= _power_of_two(d) or tail >= block:
            block, tail = max(16, _power_of_two(d)), 0
        unit = 1 if any(stride % 8 for stride in strides) else 8
        return cls(d, v, block, tail, max(16, _power_of_two(v)), value_dim is not None and v == block, unit)

    @property
    def suit_warp_groups(self) -> bool:
        """Whether tiles of 64 pairs and more, which warp groups multiply, are right: they were wrong on an H200 with
        keys of 24 and values of 8 elements, which are not read in pieces of 16 bytes.
        """
        return self.unit == 8 and min(self.d_block, self.v_block) >= 32

    @property
    def of_key(self) -> int:
        """Elements of a key and its value in shared memory."""
        return self.d_block + self.d_tail + (0 if self.from_k else self.v_block)


@dataclass(frozen=True)
class LaunchTiles:
    """Tiles of one launch. items: int32 [count, 2], row and first pair of each; None: `tiles` of every row in order.

    pairs: maximum pairs of a tile. is_split: their contexts are split over programs.
    """

    items: Tensor | None
    count: int
    tiles: int
    pairs: int
    block_m: int
    is_split: bool


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def splits_of(kv_heads: int) -> tuple[int, int]:
    """Maximum number of splits of a context, and minimum positions of one; they do not depend on the step."""
    heads = _power_of_two(kv_heads)
    return min(128, max(8, PROGRAMS // heads)), max(64, MIN_SPLIT * min(heads, 8) // 8)


def programs_of(tiles: int) -> int:
    """Programs that divide the splits of each of so many tiles among them; results do not depend on it."""
    return max(MIN_PROGRAMS, -(-FEW_PROGRAMS // max(1, tiles)))


def default_settings(is_split: bool, widths: Widths, element: int) -> AttentionSettings:
    """Settings where none were measured. element: bytes of a key's element."""
    wide = widths.d_block + widths.d_tail
    if element == 4:
        return AttentionSettings(n=32 if wide <= 128 else 16, warps=4 if wide <= 128 else 8, ahead=1)
    return AttentionSettings(n=64 if wide <= 128 else 32 if wide <= 256 else 16, warps=4 if is_split else 8, ahead=2)


def shape_of(block_m: int, is_split: bool, widths: Widths, element: int) -> str:
    """How the table of launches calls tiles of these."""
    context = "split" if is_split else "whole"
    return f"{block_m} pairs, keys {widths.d}, values {widths.v}, {element} bytes, {context} contexts"


def blocks_of(
    block_m: int, is_split: bool, widths: Widths, element: int, shared_memory: int, table: LaunchTable
) -> Blocks:
    """Shape of programs. element: bytes of a key's element. shared_memory: bytes that a program may use."""
    default = default_settings(is_split, widths, element)
    settings = table.find("paged_attention", shape_of(block_m, is_split, widths, element), default)
    blocks = Blocks(block_m, settings.n, settings.warps, settings.ahead)
    if _bytes(blocks, widths, element) > shared_memory:
        blocks = replace(blocks, ahead=1)
    while _bytes(blocks, widths, element) > shared_memory and blocks.n > 16:
        blocks = replace(blocks, n=blocks.n // 2)
    return blocks


def _bytes(blocks: Blocks, widths: Widths, element: int) -> int:
    queries = blocks.m * (widths.d_block + widths.d_tail + blocks.n)
    in_use = 1 if blocks.m >= 64 else 0  # warp group products read shared memory while the next keys arrive
    return element * (queries + (blocks.ahead + in_use) * blocks.n * widths.of_key)


def block_m_of(pairs: int, is_split: bool, widths: Widths, element: int) -> int:
    """Pairs of a tile for rows with up to `pairs` of them."""
    most = 64 if is_split or widths.d_block > 128 else 128
    most = 16 if element == 4 or not widths.suit_warp_groups else most
    return min(most, max(16, _power_of_two(pairs)))


def tiles_of(rows: AttentionMetadata, group: int, widths: Widths, element: int) -> list[LaunchTiles]:
    """The tiles of a step: rows with one token, with few and with many. Cached for the step's other blocks.

    group: query heads of a key-value head. A step of rows with one token takes only their number from the host.
    """
    if rows.max_query == 1:
        block_m = block_m_of(group, True, widths, element)
        per_row = -(-group // block_m)
        return [LaunchTiles(None, len(rows.contexts) * per_row, per_row, min(group, block_m), block_m, True)]
    key = ("triton_attention", group, widths, element)
    if key not in rows.step_cache:
        lens = rows.lens_host
        kinds = ((lens == 1, True), ((lens > 1) & (lens <= FEW), True), (lens > FEW, False))
        rows.step_cache[key] = [
            _listed(rows, np.flatnonzero(chosen), group, is_split, widths, element)
            for chosen, is_split in kinds
            if chosen.any()
        ]
    found: list[LaunchTiles] = rows.step_cache[key]
    return found


def _listed(
    rows: AttentionMetadata, chosen: NDArray[np.int64], group: int, is_split: bool, widths: Widths, element: int
) -> LaunchTiles:
    """LaunchTiles of the chosen rows; those with the most keys first, so that none of them begins last."""
    pairs = rows.lens_host[chosen].astype(np.int64) * group
    most = int(pairs.max())
    block_m = block_m_of(most, is_split, widths, element)
    counts = -(-pairs // block_m)
    row = np.repeat(chosen, counts)
    tile = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    last = rows.contexts_host[row] - rows.lens_host[row] + (tile + 1) * block_m // group
    order = np.argsort(-last, kind="stable")
    items = np.stack((row, tile * block_m), 1)[order].astype(np.int32)
    table = torch.from_numpy(items).to(rows.contexts.device, non_blocking=True)
    return LaunchTiles(table, len(items), 0, min(most, block_m), block_m, is_split)

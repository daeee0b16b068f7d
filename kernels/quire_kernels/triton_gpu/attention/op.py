"""The op `paged_attention` for GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from quire_kernels.attention import HeadGroups, PositionBiases, Stripes, in_whole_groups
from quire_kernels.candidates.capture import capturable
from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.attention.kernels import attend, combine
from quire_kernels.triton_gpu.attention.tiles import (
    Blocks,
    LaunchTiles,
    Widths,
    blocks_of,
    programs_of,
    splits_of,
    tiles_of,
)
from quire_kernels.triton_gpu.device import arrivals, overlapping, shared_memory
from quire_kernels.triton_gpu.tuning.launch_table import LaunchTable, device_table

PARTIAL_BYTES = 1 << 28
"""Bytes of the results of splits; a launch whose results would need more is divided."""

MAX_TILES = 65535
"""Limit of a grid's second and third dimension."""

JOINED_PAIRS = 8
"""Pairs of a tile up to which the last program of a tile and head joins its splits."""


@capturable
def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: AttentionMetadata,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    *,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    chunk: int | None = None,
    value_dim: int | None = None,
    biases: PositionBiases | None = None,
    stripes: Stripes | None = None,
    groups: HeadGroups | None = None,
    table: LaunchTable | None = None,
) -> Tensor:
    """A step in which every row has one token reads neither `lens_host` nor `contexts_host`, so it can be captured.

    `rows.max_context` bounds the number of splits; in a captured step it must be the maximum of all replays. A row
    whose context is 0 gives zeros. table: of launches, None = that of the device.
    """
    if groups is not None:
        options: dict[str, Any] = {"sinks": sinks, "slopes": slopes, "biases": biases, "stripes": stripes}
        options |= {"chunk": chunk, "value_dim": value_dim, "table": table}
        return in_whole_groups(paged_attention, groups, q, k_pool, v_pool, rows, scale, window, softcap, **options)
    table = device_table(q.device) if table is None else table
    if value_dim is not None:
        v_pool = k_pool[..., :value_dim]
    q = q if q.stride(-1) == 1 else q.contiguous()
    heads, width = q.shape[1], v_pool.shape[-1]
    out = q.new_empty(len(q), heads, width)
    arguments = _options(rows, scale, window, softcap, sinks, slopes, chunk, biases, stripes)
    strides = (*q.stride()[:-1], *k_pool.stride()[:-1], *v_pool.stride()[:-1])
    widths = Widths.from_strides(q.shape[-1], width, value_dim, strides)
    for tiles in tiles_of(rows, heads // k_pool.shape[2], widths, q.element_size()):
        _run(out, q, k_pool, v_pool, rows, tiles, widths, arguments, table)
    return out


def _options(
    rows: AttentionMetadata,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    slopes: Tensor | None,
    chunk: int | None,
    biases: PositionBiases | None,
    stripes: Stripes | None,
) -> dict[str, Any]:
    """Arguments of the kernels; those of options that are not given have any value of the right kind."""
    block, local, stride, step, first = stripes or Stripes(1, 0, 1)
    given: dict[str, Any] = {
        "ENDS": rows.visible_ends,
        "SINKS": sinks,
        "SLOPES": slopes,
        "BIASES": biases,
        "STRIPES": stripes,
    }
    given |= {"CAP": softcap, "WINDOW": window, "CHUNK": chunk}
    return {
        "visible_ends": rows.contexts if rows.visible_ends is None else rows.visible_ends,
        "sinks": rows.contexts if sinks is None else sinks,
        "slopes": rows.contexts if slopes is None else slopes,
        "biases": rows.contexts if biases is None else biases.values.contiguous(),
        "reach": 0 if biases is None else biases.reach,
        "scale": scale if softcap is None else scale / softcap,
        "softcap": 1.0 if softcap is None else softcap,
        "window": window or 1,
        "chunk": chunk or 1,
        **{"stripe_block": block, "stripe_local": local, "stripe_stride": stride},
        **{"stripe_step": step, "stripe_first": first},
        **{f"HAS_{name}": value is not None for name, value in given.items()},
    }


def _run(
    out: Tensor,
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: AttentionMetadata,
    tiles: LaunchTiles,
    widths: Widths,
    options: dict[str, Any],
    table: LaunchTable,
) -> None:
    kv_heads = k_pool.shape[2]
    blocks = blocks_of(tiles.block_m, tiles.is_split, widths, q.element_size(), shared_memory(q.device), table)
    most, shortest = splits_of(kv_heads)
    splits = min(most, -(-_longest(rows, tiles, blocks, options) // shortest)) if tiles.is_split else 1
    common = {
        "query_starts": rows.query_starts,
        "contexts": rows.contexts,
        "items": rows.contexts if tiles.items is None else tiles.items,
        "tiles": tiles.tiles,
        "pairs_per_item": tiles.pairs,
        "GROUP": q.shape[1] // kv_heads,
        "V": widths.v,
        "V_BLOCK": widths.v_block,
        "BLOCK_M": blocks.m,
        "BLOCK_N": blocks.n,
        "MIN_SPLIT": shortest,
        "SPLITS": most,
        "HAS_ITEMS": tiles.items is not None,
        **options,
    }
    attending = {
        **common,
        **{"q": q, "k_pool": k_pool, "v_pool": v_pool, "UNIT": widths.unit},
        **_strides("q", ("token", "head"), q, widths),
        **_strides("k", ("page", "slot", "head"), k_pool, widths),
        **_strides("v", ("page", "slot", "head"), v_pool, widths),
        **{"pages": rows.pages, "pages_stride": rows.pages.stride(0), "PAGE": k_pool.shape[1]},
        **{"D": widths.d, "D_BLOCK": widths.d_block, "D_TAIL": widths.d_tail, "V_FROM_K": widths.from_k},
        "SPLIT": splits > 1,
        "PRECISION": "tf32x3",  # of float32 only: three products in tf32 are as accurate as one in float32
        "WIDE": q.device.type == "cpu",  # the interpreter has no bf16 dot
    }
    combining = {name: value for name, value in common.items() if name in combine.arg_names}
    combining["PARTS"] = min(most, max(4, 4096 // widths.v_block))
    joins = splits > 1 and tiles.pairs <= JOINED_PAIRS
    attending |= {"splits": splits, "JOINS": joins, "PARTS": combining["PARTS"]}
    per_tile = kv_heads * tiles.pairs * splits
    programs = min(splits, programs_of(kv_heads * tiles.count))
    for first, count in _launches(tiles.count, per_tile * (widths.v + 2) * 4 if splits > 1 else 0):
        results = {"out": out, "partial": out, "stats": out, "first_item": first}
        arrived = arrivals(q.device, count * kv_heads) if joins else rows.contexts
        if splits > 1:
            for name, columns in (("partial", widths.v), ("stats", 2)):
                results[name] = torch.empty(count * per_tile, columns, dtype=torch.float32, device=q.device)
        attend[kv_heads, count, programs](
            **attending,
            **results,
            arrived=arrived,
            num_warps=blocks.warps,
            num_stages=blocks.stages,
            **overlapping(q.device),
        )
        if splits > 1 and not joins:
            combine[kv_heads, tiles.pairs, count](**combining, **results, splits=splits)


def _strides(name: str, dimensions: Sequence[str], x: Tensor, widths: Widths) -> dict[str, int]:
    """In units, from which the compiler sees how addresses are aligned."""
    return {
        f"{name}_{dimension}": stride // widths.unit for dimension, stride in zip(dimensions, x.stride(), strict=False)
    }


def _longest(rows: AttentionMetadata, tiles: LaunchTiles, blocks: Blocks, options: dict[str, Any]) -> int:
    """The maximum number of positions that a tile attends to."""
    if not options["HAS_WINDOW"] or options["HAS_ENDS"]:
        return max(1, rows.max_context)
    tokens = 1 if rows.max_query == 1 else tiles.pairs  # at most a token for each pair
    return max(1, min(rows.max_context, options["window"] + tokens + blocks.n))


def _launches(tiles: int, bytes_per_tile: int) -> Iterator[tuple[int, int]]:
    """First tile and number of tiles of each launch."""
    step = min(MAX_TILES, max(1, PARTIAL_BYTES // bytes_per_tile) if bytes_per_tile else MAX_TILES)
    for first in range(0, tiles, step):
        yield first, min(step, tiles - first)

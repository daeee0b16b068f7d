"""Paged attention in batched torch calls: rows of similar shape are gathered and attended together.

A step is cut into tiles: up to TILE tokens of one row, with all the keys they may attend to. Tiles with the same number
of tokens and a similar number of keys form a group, which takes one gather and one attention call.
Groups are built once per step and kept in `AttentionMetadata.step_cache` for the following blocks.
There is no loop over rows that have one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from quire_kernels.attention import HeadGroups, PositionBiases, Stripes, in_whole_groups
from quire_kernels.ops import AttentionMetadata
from quire_kernels.pytorch.scoring import Scoring

# cuDNN builds a plan for every new shape, for which the host takes over a millisecond
torch.backends.cuda.enable_cudnn_sdp(False)

TILE = 256
"""Maximum tokens of a tile that needs a mask. It bounds the mask, and keys after a tile's end are not read."""

MAX_GATHERED = 1 << 16
"""Maximum key positions gathered for one call; bounds the memory that a step needs beside the KV cache."""

PADDING = 1.3
"""Tiles share a call if none is padded to more than this times its own pages; tiles of one token with few pages
always may.
"""

SMALL_PAGES = 8
"""Page count up to which tiles of one token share a call whatever their padding."""


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
) -> Tensor:
    if groups is not None:
        options: dict[str, Any] = {"sinks": sinks, "slopes": slopes, "biases": biases, "stripes": stripes}
        options |= {"chunk": chunk, "value_dim": value_dim}
        return in_whole_groups(paged_attention, groups, q, k_pool, v_pool, rows, scale, window, softcap, **options)
    if value_dim is not None:
        v_pool = k_pool[..., :value_dim]
    scores = Scoring(scale, softcap, sinks, slopes, biases, stripes)
    calls = _groups_of(rows, k_pool.shape[1], _Reach(window, chunk), not scores.is_plain, q)
    if len(calls) == 1 and calls[0].tokens is None:
        return _attend(q, k_pool, v_pool, calls[0], scores)
    out = q.new_empty(*q.shape[:2], v_pool.shape[-1])
    for group in calls:
        if group.tokens is None:
            span = slice(group.start, group.start + group.count * group.length)
            out[span] = _attend(q[span], k_pool, v_pool, group, scores)
        else:
            out[group.tokens] = _attend(q[group.tokens], k_pool, v_pool, group, scores)
    return out


class _Reach(NamedTuple):
    """How far back a token attends: less than `window` positions, and within its chunk."""

    window: int | None
    chunk: int | None

    def sees_all(self, length: int) -> bool:
        """Whether no token of a seq of this length is out of another's reach."""
        return length <= min(self.window or length, self.chunk or length)

    def oldest(self, position: int) -> int:
        """The first position that the token at `position` attends to."""
        start = 0 if self.window is None else max(0, position - self.window + 1)
        return start if self.chunk is None else max(start, position // self.chunk * self.chunk)


@dataclass(frozen=True, slots=True)
class _Tile:
    """Tokens start … start+length-1 of the step, of row `row`; the last one is at position context-1.

    end: end (exclusive) of the positions that they attend to.
    """

    row: int
    start: int
    length: int
    context: int
    end: int
    causal: bool
    first_page: int
    num_pages: int


@dataclass(frozen=True, slots=True)
class _AttentionGroup:
    """`count` tiles of `length` tokens each, attended in one call.

    positions: int64 [count, length], of the tokens, and firsts: int64 [count], of the first keys; both on the CPU.
    tokens: int64 [count * length], or None if they are the step's tokens from `start` on. pages: int64
    [count * pages of the longest tile]. mask: [count, 1, length, keys], added to the scores, or None: causal
    from the first key on (`causal`), or every key is visible.
    """

    start: int
    count: int
    length: int
    tokens: Tensor | None
    pages: Tensor
    keys: int
    mask: Tensor | None
    causal: bool
    positions: Tensor
    firsts: Tensor


def _attend(q: Tensor, k_pool: Tensor, v_pool: Tensor, group: _AttentionGroup, scores: Scoring) -> Tensor:
    """q [count * length, H, D] -> [count * length, H, V]."""
    heads, dim = q.shape[1:]
    k, v = (
        pool.index_select(0, group.pages).view(group.count, -1, *pool.shape[2:])[:, : group.keys].transpose(1, 2)
        for pool in (k_pool, v_pool)
    )  # [count, K, keys, D]
    q = q.reshape(group.count, group.length, heads, dim).transpose(1, 2)
    if not scores.is_plain:
        out = scores.attend(q, k, v, group.mask, group.firsts, group.positions)
    else:
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=group.mask, is_causal=group.causal, scale=scores.scale, enable_gqa=heads != k.shape[1]
        )
    return out.transpose(1, 2).reshape(-1, heads, v.shape[-1])


def _groups_of(
    rows: AttentionMetadata, page_size: int, reach: _Reach, needs_mask: bool, q: Tensor
) -> list[_AttentionGroup]:
    key = ("torch_attention", page_size, reach, needs_mask, q.dtype)
    if key not in rows.step_cache:
        tiles = list(_tiles(rows, page_size, reach, needs_mask))
        rows.step_cache[key] = [
            _group(members, rows, page_size, reach, q) for members in _shared_calls(tiles, page_size)
        ]
    found: list[_AttentionGroup] = rows.step_cache[key]
    return found


def _tiles(rows: AttentionMetadata, page_size: int, reach: _Reach, needs_mask: bool) -> Iterator[_Tile]:
    start = 0
    for row, (length, context) in enumerate(zip(rows.lens_host.tolist(), rows.contexts_host.tolist(), strict=True)):
        ahead = _sees_ahead(rows, start, length, context)
        whole = length == context and not needs_mask and not ahead and reach.sees_all(length)
        step = length if whole else TILE
        for offset in range(0, length, step or 1):
            size = min(step, length - offset)
            past = context - length + offset + size
            end = past
            if ahead and rows.visible_ends_host is not None:
                end = int(rows.visible_ends_host[start + offset : start + offset + size].max())
            first = reach.oldest(past - size) // page_size
            yield _Tile(row, start + offset, size, past, end, whole, first, -(-end // page_size) - first)
        start += length


def _sees_ahead(rows: AttentionMetadata, start: int, length: int, context: int) -> bool:
    """Whether a token of the row attends to a later position."""
    if rows.visible_ends_host is None:
        return False
    own = np.arange(context - length, context) + 1
    return bool((rows.visible_ends_host[start : start + length] > own).any())


def _shared_calls(tiles: list[_Tile], page_size: int) -> Iterator[list[_Tile]]:
    """Lists of tiles that may share a call, each in token order."""

    def shape(tile: _Tile) -> tuple[int, bool]:
        return tile.length, tile.causal

    for (length, _), same in groupby(sorted(tiles, key=lambda t: (*shape(t), t.num_pages)), key=shape):
        members: list[_Tile] = []
        for tile in same:
            smallest = members[0].num_pages if members else tile.num_pages
            near = tile.num_pages <= max(PADDING * smallest, SMALL_PAGES if length == 1 else 0)
            fits = (len(members) + 1) * tile.num_pages * page_size <= MAX_GATHERED
            if members and not (near and fits):
                yield sorted(members, key=lambda t: t.start)
                members = []
            members.append(tile)
        yield sorted(members, key=lambda t: t.start)


def _group(tiles: list[_Tile], rows: AttentionMetadata, page_size: int, reach: _Reach, q: Tensor) -> _AttentionGroup:
    device = q.device
    length, causal = tiles[0].length, tiles[0].causal
    starts = _column(tiles, "start")
    contiguous = bool((np.diff(starts) == length).all())
    tokens = None if contiguous else torch.from_numpy((starts[:, None] + np.arange(length)).reshape(-1)).to(device)
    first, count = _column(tiles, "first_page"), _column(tiles, "num_pages")
    widest = int(count.max())
    # a shorter tile repeats its own last page: another seq's page may hold anything, also NaN
    page = first[:, None] + np.minimum(np.arange(widest), count[:, None] - 1)
    row = torch.from_numpy(_column(tiles, "row")).to(device)
    pages = rows.pages[row[:, None], torch.from_numpy(page).to(device)].long().reshape(-1)
    keys = int((_column(tiles, "end") - first * page_size).max())
    firsts, positions = first * page_size, _column(tiles, "context")[:, None] - length + np.arange(length)
    mask = None if causal else _mask(_visible_ends(tiles, rows), positions, firsts, keys, reach)
    added = None if mask is None else torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(mask, -torch.inf).to(device)
    of_tokens, of_keys = torch.from_numpy(positions), torch.from_numpy(firsts)
    return _AttentionGroup(int(starts[0]), len(tiles), length, tokens, pages, keys, added, causal, of_tokens, of_keys)


def _column(tiles: Iterable[_Tile], name: str) -> NDArray[np.int64]:
    return np.array([getattr(tile, name) for tile in tiles], dtype=np.int64)


def _visible_ends(tiles: Sequence[_Tile], rows: AttentionMetadata) -> NDArray[np.int64]:
    """Ends of the visible positions of each token, [tiles, length]."""
    tokens = np.arange(tiles[0].length)
    if rows.visible_ends_host is None:
        return _column(tiles, "context")[:, None] - tiles[0].length + tokens + 1
    return rows.visible_ends_host[_column(tiles, "start")[:, None] + tokens].astype(np.int64)


def _mask(
    ends: NDArray[np.int64], positions: NDArray[np.int64], firsts: NDArray[np.int64], keys: int, reach: _Reach
) -> Tensor | None:
    """True where a key is hidden from a token, [tiles, 1, length, keys]; None if every token sees every key.

    ends: [tiles, length], of the visible positions. positions: [tiles, length], of the tokens. firsts: [tiles],
    positions of the first keys.
    """
    seen_at = (firsts[:, None] + np.arange(keys))[:, None, None, :]
    hidden = seen_at >= ends[:, None, :, None]
    own = positions[:, None, :, None]
    if reach.window is not None:
        hidden |= own - seen_at >= reach.window
    if reach.chunk is not None:
        hidden |= own // reach.chunk != seen_at // reach.chunk
    return torch.from_numpy(hidden) if hidden.any() else None

"""Calls of paged attention for tests: rows, queries, and pools of which most was never written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels import reference
from quire_kernels.attention import HeadGroups
from quire_kernels.ops import AttentionMetadata


def rows_of(
    lens: Sequence[int], contexts: Sequence[int], page_size: int, shared: int = 0
) -> tuple[AttentionMetadata, int]:
    """Rows with pages all over a pool, and its size; all rows have the first row's first `shared` pages."""
    counts = [-(-context // page_size) for context in contexts]
    order = np.random.default_rng(0).permutation(sum(counts) + 2).astype(np.int32)
    pages = np.full((len(lens), max([*counts, 1])), len(order) + 1000, np.int32)  # unused entries may be anything
    for r, count in enumerate(counts):
        pages[r, :count] = order[sum(counts[:r]) :][:count]
        pages[r, :shared] = pages[0, :shared]
    starts = np.cumsum([0, *lens], dtype=np.int32)
    host = np.array(lens, np.int32), np.array(contexts, np.int32)
    most = max([*lens, 0]), max([*contexts, 0])
    return AttentionMetadata(
        torch.from_numpy(starts), torch.from_numpy(host[1]), torch.from_numpy(pages), *host, *most
    ), len(order)


@dataclass(frozen=True)
class Attention:
    """One call; keys and values lie in a plain pool, and in one that the implementation is yet to write."""

    lens: tuple[int, ...]
    contexts: tuple[int, ...]
    heads: int
    kv_heads: int
    dim: int
    dtype: torch.dtype = torch.float32
    window: int | None = None
    softcap: float | None = None
    page_size: int = 16
    shared: int = 0
    groups: HeadGroups | None = None
    sinks: tuple[float, ...] | None = None

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, AttentionMetadata, int]:
        """q, k, v, slots of all positions, rows, pages."""
        rows, pages = rows_of(self.lens, self.contexts, self.page_size, self.shared)
        made = torch.Generator().manual_seed(0)
        q = torch.randn(sum(self.lens), self.heads, self.dim, generator=made).to(self.dtype)
        slot_mapping = []
        for r, context in enumerate(self.contexts):
            at = torch.arange(self.shared * self.page_size if r else 0, context)
            slot_mapping.append(rows.pages[r, at // self.page_size].long() * self.page_size + at % self.page_size)
        where = torch.cat([*slot_mapping, torch.empty(0, dtype=torch.int64)])
        k, v = torch.randn(2, len(where), self.kv_heads, self.dim, generator=made).to(self.dtype)
        return q, k, v, where, rows, pages

    def pools(self, pages: int) -> Tensor:
        """Positions that were never written hold NaN."""
        return torch.full((2, pages, self.page_size, self.kv_heads, self.dim), torch.nan, dtype=self.dtype)

    def by(self, module: Any, rows: AttentionMetadata | None = None, q: Tensor | None = None) -> Tensor:
        """What an implementation gives; for other rows of the same pool, if there are any."""
        mine, k, v, slot_mapping, all_rows, pages = self.tensors
        k_pool, v_pool = self.pools(pages)
        module.write_kv(k, v, k_pool, v_pool, slot_mapping)
        given = rows or all_rows, self.dim**-0.5, self.window, self.softcap
        sinks = None if self.sinks is None else torch.tensor(self.sinks)
        return module.paged_attention(mine if q is None else q, k_pool, v_pool, *given, groups=self.groups, sinks=sinks)


@cache
def expected(case: Attention) -> Tensor:
    return case.by(reference)


STEPS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1,), (1,)),
    ((1,) * 9, (1, 15, 16, 17, 63, 64, 65, 128, 300)),
    ((13,), (13,)),
    ((5, 1, 8, 3), (5, 17, 31, 130)),
    ((70, 1, 33, 2), (200, 129, 33, 100)),
    ((64, 3), (64, 67)),
    ((1,) * 30, tuple(range(50, 80))),
]

SINGLE = (1,) * 80


def cut(case: Attention, lens: Sequence[int]) -> tuple[AttentionMetadata, Tensor]:
    """The only row of a case as several rows, one after the other."""
    q, _, _, _, rows, _ = case.tensors
    ends = np.cumsum(lens) + case.contexts[0] - sum(lens)
    host = np.array(lens, np.int32), ends.astype(np.int32)
    starts, pages = torch.from_numpy(np.cumsum([0, *lens], dtype=np.int32)), rows.pages.expand(len(lens), -1)
    return AttentionMetadata(starts, torch.from_numpy(host[1]), pages, *host, max(lens), int(ends.max())), q

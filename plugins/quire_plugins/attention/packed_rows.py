"""Keys and values of several rows side by side, for attention that reads no pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from quire_kernels.ops import AttentionMetadata

MAX_KEYS = 1 << 16
"""Keys of the rows of one call, unless a single row has more; bounds the memory beside the KV cache."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows `first` … `end`-1 of a step.

    start: their first token. lens: tokens of each. key_lens: keys of each, which end with its last token. positions:
    int64 [keys], of the keys, and slots: int64 [keys], where they are in the pool; both on the device.
    """

    first: int
    end: int
    start: int
    lens: list[int]
    key_lens: list[int]
    positions: Tensor
    slots: Tensor

    @property
    def tokens(self) -> slice:
        return slice(self.start, self.start + sum(self.lens))

    def of(self, pool: Tensor) -> Tensor:
        """pool [pages, page_size, K, D] -> keys or values [keys, K, D]."""
        return pool.flatten(0, 1).index_select(0, self.slots)


def packed_rows(rows: AttentionMetadata, page_size: int, window: int | None = None) -> list[PackedRows]:
    """The rows of a step, as often as calls need them; keys that no token of a row attends to are left out."""
    key = ("packed_rows", page_size, window)
    if key not in rows.step_cache:
        rows.step_cache[key] = list(_packed(rows, page_size, window))
    found: list[PackedRows] = rows.step_cache[key]
    return found


def _packed(rows: AttentionMetadata, page_size: int, window: int | None) -> Iterator[PackedRows]:
    lens, contexts = rows.lens_host.astype(np.int64), rows.contexts_host.astype(np.int64)
    oldest = np.zeros_like(contexts) if window is None else np.maximum(contexts - lens - window + 1, 0)
    key_lens, starts = contexts - oldest, np.cumsum([0, *lens])
    for first, end in pairwise(_borders(key_lens.tolist())):
        of_rows = np.repeat(np.arange(first, end), key_lens[first:end])
        before = np.cumsum(key_lens[first:end]) - key_lens[first:end]  # keys of the rows before, in this call
        positions = np.arange(len(of_rows)) + np.repeat(oldest[first:end] - before, key_lens[first:end])
        on_device = torch.from_numpy(np.stack((of_rows, positions))).to(rows.pages.device)
        pages = rows.pages[on_device[0], on_device[1] // page_size].long()
        yield PackedRows(
            first=first,
            end=end,
            start=int(starts[first]),
            lens=lens[first:end].tolist(),
            key_lens=key_lens[first:end].tolist(),
            positions=on_device[1],
            slots=pages * page_size + on_device[1] % page_size,
        )


def _borders(key_lens: list[int]) -> list[int]:
    """First rows of calls, and the number of rows."""
    found, total = [0], 0
    for row, count in enumerate(key_lens):
        if total and total + count > MAX_KEYS:
            found.append(row)
            total = 0
        total += count
    return [*found, len(key_lens)]

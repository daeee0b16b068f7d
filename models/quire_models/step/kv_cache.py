"""KVCache: the tensors that hold keys and values of all seqs, in pages.

The engine's page pool decides which page belongs to which seq.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.cpu.memory import map_zeros, prefault, return_memory
from quire_kernels.quantized_pages import stored_elements
from quire_models.parts.decoder import KvShape

PREFAULT_BYTES = 1 << 21
"""Bytes of a tensor that are prefaulted at a time."""


@dataclass(frozen=True)
class KVCache:
    """Keys and values of each block: k[i] is [num_pages, page_size, kv_heads, head_dim], v[i] has the width of values.

    Quantized, in int8 or in uint8 for 4 bits, the last dimension has what `quire_kernels.quantized_pages` stores.
    """

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    page_size: int

    @classmethod
    def allocate(
        cls,
        shapes: Sequence[KvShape],
        num_pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        pin_memory: bool = False,
    ) -> KVCache:
        """A cache of zeros: padding is read and multiplied by 0, so it must not be NaN."""

        def pool(heads: int, dim: int) -> Tensor:
            size = (num_pages, page_size, heads, stored_elements(dim, dtype))
            return _zeros(size, dtype, torch.device(device), pin_memory)

        keys = tuple(pool(shape.kv_heads, shape.head_dim) for shape in shapes)
        return cls(keys, tuple(pool(shape.kv_heads, shape.value_width) for shape in shapes), page_size)

    @staticmethod
    def page_bytes(shapes: Sequence[KvShape], page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page over all blocks, keys and values."""
        stored = sum(
            shape.kv_heads * stored_elements(dim, dtype)
            for shape in shapes
            for dim in (shape.head_dim, shape.value_width)
        )
        return page_size * dtype.itemsize * stored

    @property
    def num_pages(self) -> int:
        return self.k[0].shape[0] if self.k else 0

    def prefault(self, should_continue: Callable[[], bool], usable: Callable[[], int] | None = None) -> None:
        """Allocate the cache's physical memory, so that no step waits for page faults; may run concurrently with steps.

        It proceeds from the first pages to the last and stops early when `should_continue` returns False. On a CPU
        only. usable: returns how many pages need memory, None = all.
        """
        pools = [pool for pool in self.k + self.v if pool.device.type == "cpu" and pool.numel()]
        tensors = [pool.view(-1).view(torch.uint8) for pool in pools]
        num_bytes = max(map(len, tensors), default=0)
        for start in range(0, num_bytes, PREFAULT_BYTES):
            for tensor in tensors:
                if not should_continue():
                    return
                end = len(tensor) if usable is None else len(tensor) // self.num_pages * usable()
                prefault(tensor[start : min(end, start + PREFAULT_BYTES)])

    def release(self, pages: Sequence[int]) -> None:
        """Give the memory of pages, in ascending order, back to the system; they are zeros then. On a CPU only."""
        starts = [page for i, page in enumerate(pages) if i == 0 or pages[i - 1] + 1 != page]
        ends = [page + 1 for i, page in enumerate(pages) if i + 1 == len(pages) or page + 1 != pages[i + 1]]
        for start, end in zip(starts, ends, strict=True):
            for pool in self.k + self.v:
                return_memory(pool[start:end])

    def return_memory(self) -> bool:
        """Give the memory of all pages, which are zeros then, back to the system; whether that worked. On a CPU."""
        return all([return_memory(pool) for pool in self.k + self.v if pool.numel()])

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages within the cache: (source, destination) pairs; all sources are read before any destination is
        written.
        """
        self.swap(self, self, pairs)

    @staticmethod
    def swap(source: KVCache, destination: KVCache, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages from one cache to another, possibly on another device: (source, destination) pairs."""
        if not pairs:
            return
        for from_pool, to_pool in zip(source.k + source.v, destination.k + destination.v, strict=True):
            if not from_pool[0].numel():
                continue
            index = torch.tensor(pairs, dtype=torch.int64).T
            pages = from_pool.index_select(0, index[0].to(from_pool.device))
            to_pool.index_copy_(0, index[1].to(to_pool.device), pages.to(to_pool.device))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, pin_memory: bool) -> Tensor:
    """A tensor of zeros; on a CPU, the system allocates its memory at the first write or at `prefault`."""
    if device.type != "cpu" or pin_memory or not math.prod(shape):
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pin_memory)
    return map_zeros(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)  # torch.zeros would write it at once

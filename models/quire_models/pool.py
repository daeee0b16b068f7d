"""KvPool: the tensors that hold keys and values of all seqs, in pages.

It knows page numbers only; which page belongs to whom is the page pool's affair in the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire_kernels.cpu.memory import populate, use_large_pages
from quire_kernels.int8 import SCALE_BYTES
from quire_models.parts import KvShape

PIECE = 1 << 21
"""Bytes of a tensor that are populated at a time."""


@dataclass(frozen=True)
class KvPool:
    """Keys and values of each block: k[i] and v[i] are [num_pages, page_size, kv_heads, head_dim].

    In int8 the last dimension is four longer: the bytes of a float32 scale, for each token and head.
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
    ) -> KvPool:
        """A pool of zeros; zeros because padding is read, multiplied by 0, and must not be NaN."""

        def pool(shape: KvShape) -> Tensor:
            heads, dim = shape.kv_heads, _stored(shape.head_dim, dtype)
            return _zeros((num_pages, page_size, heads, dim), dtype, torch.device(device), pin_memory)

        return cls(tuple(map(pool, shapes)), tuple(map(pool, shapes)), page_size)

    @staticmethod
    def page_bytes(shapes: Sequence[KvShape], page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page over all blocks, keys and values."""
        return 2 * page_size * dtype.itemsize * sum(heads * _stored(dim, dtype) for heads, dim in shapes)

    @property
    def num_pages(self) -> int:
        """How many pages there are."""
        return self.k[0].shape[0] if self.k else 0

    def populate(self, going_on: Callable[[], bool]) -> None:
        """Take the pool's memory from the system, so that no step has to wait for it; beside the steps, if need be.

        It goes from the first pages to the last, and ends early when `going_on` says no. On a CPU only.
        """
        tensors = [pool.view(-1).view(torch.uint8) for pool in self.k + self.v if pool.device.type == "cpu"]
        longest = max(map(len, tensors), default=0)
        for start in range(0, longest, PIECE):
            for tensor in tensors:
                if not going_on():
                    return
                populate(tensor[start : start + PIECE])

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages within the pool: (source, destination) pairs, all sources read before any is written."""
        self.swap(self, self, pairs)

    @staticmethod
    def swap(source: KvPool, destination: KvPool, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy pages from one pool to another, perhaps on another device: (source, destination) pairs."""
        if not pairs:
            return
        for ours, theirs in zip(source.k + source.v, destination.k + destination.v, strict=True):
            index = torch.tensor(pairs, dtype=torch.int64).T
            pages = ours.index_select(0, index[0].to(ours.device))
            theirs.index_copy_(0, index[1].to(theirs.device), pages.to(theirs.device))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, pin_memory: bool) -> Tensor:
    """A tensor of zeros; on a CPU its memory comes from the system when it is first written to, or by `populate`."""
    if device.type != "cpu" or pin_memory or not math.prod(shape):
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pin_memory)
    # torch would write the zeros at once, before anybody can ask for large pages
    made = torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
    use_large_pages(made)
    return made


def _stored(dim: int, dtype: torch.dtype) -> int:
    """Elements that a head of `dim` takes, with its scale if it needs one."""
    return dim + SCALE_BYTES if dtype == torch.int8 else dim

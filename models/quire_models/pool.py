"""KvPool: the tensors that hold keys and values of all seqs, in pages.

It knows page numbers only; which page belongs to whom is the page pool's affair in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.cpu.memory import use_large_pages
from quire_kernels.int8 import SCALE_BYTES
from quire_models.parts import KvShape


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
            made = torch.zeros(num_pages, page_size, heads, dim, dtype=dtype, device=device, pin_memory=pin_memory)
            use_large_pages(made)
            return made

        return cls(tuple(map(pool, shapes)), tuple(map(pool, shapes)), page_size)

    @staticmethod
    def page_bytes(shapes: Sequence[KvShape], page_size: int, dtype: torch.dtype) -> int:
        """Bytes of one page over all blocks, keys and values."""
        return 2 * page_size * dtype.itemsize * sum(heads * _stored(dim, dtype) for heads, dim in shapes)

    @property
    def num_pages(self) -> int:
        """How many pages there are."""
        return self.k[0].shape[0] if self.k else 0

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


def _stored(dim: int, dtype: torch.dtype) -> int:
    """Elements that a head of `dim` takes, with its scale if it needs one."""
    return dim + SCALE_BYTES if dtype == torch.int8 else dim

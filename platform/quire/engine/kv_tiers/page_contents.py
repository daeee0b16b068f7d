"""Contents of KV pages: copied out of the device's cache, made into bytes, and put back.

The bytes of a page are those of its keys in every block, then of its values, in the order of the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quire_models import KVCache


def pools_of(kv: KVCache) -> list[Tensor]:
    """The tensors of a cache that hold something: [pages, …] each."""
    return [pool for pool in kv.k + kv.v if pool[:1].numel()]


def bytes_of_page(kv: KVCache) -> int:
    return sum(pool[:1].numel() * pool.element_size() for pool in pools_of(kv))


@dataclass(frozen=True)
class CopiedPages:
    """Copies of `count` pages: [count, …] of each pool. done: when a GPU has made them."""

    tensors: tuple[Tensor, ...]
    count: int
    done: torch.cuda.Event | None = None

    @classmethod
    def copy(cls, kv: KVCache, pages: Sequence[int]) -> CopiedPages:
        """Copy pages behind the steps that were launched; on a GPU this does not wait for them."""
        pools = pools_of(kv)
        index = torch.tensor(pages, dtype=torch.int64, device=pools[0].device)
        tensors = tuple(pool.index_select(0, index) for pool in pools)
        if pools[0].device.type != "cuda":
            return cls(tensors, len(pages))
        done = torch.cuda.Event()
        done.record(torch.cuda.current_stream(pools[0].device))  # type: ignore[no-untyped-call]
        return cls(tensors, len(pages), done)

    def payloads(self) -> Iterator[bytes]:
        """The bytes of each page, in any thread."""
        rows = [_rows(each) for each in self._on_host()]
        for i in range(self.count):
            yield b"".join(row[i] for row in rows)

    def _on_host(self) -> Sequence[Tensor]:
        if self.done is None:
            return self.tensors
        stream = torch.cuda.Stream(self.tensors[0].device)  # the steps go on in theirs
        with torch.cuda.stream(stream):
            stream.wait_event(self.done)
            return [each.cpu() for each in self.tensors]


def _rows(pages: Tensor) -> list[memoryview]:
    """The bytes of each page of a tensor."""
    array = pages.view(torch.uint8).numpy().reshape(len(pages), -1)
    return [row.data for row in array]


@dataclass(frozen=True)
class ReadPages:
    """Pages that were read: [count, …] for each pool, on the CPU."""

    tensors: tuple[Tensor, ...]
    count: int

    @classmethod
    def from_payloads(cls, kv: KVCache, payloads: Sequence[bytes | memoryview]) -> ReadPages:
        """payloads: of the size of this cache's pages."""
        pools = pools_of(kv)
        pages = [np.frombuffer(payload, np.uint8) for payload in payloads]
        tensors, start = [], 0
        for pool in pools:
            size = pool[:1].numel() * pool.element_size()
            part = np.stack([page[start : start + size] for page in pages])
            tensor = torch.from_numpy(part).view(pool.dtype).view(len(payloads), *pool.shape[1:])
            tensors.append(tensor.pin_memory() if pool.device.type == "cuda" else tensor)
            start += size
        return cls(tuple(tensors), len(payloads))

    def put(self, kv: KVCache, start: int, pages: Sequence[int]) -> None:
        """Write those from `start` on into these pages, behind the steps that were launched."""
        pools = pools_of(kv)
        index = torch.tensor(pages, dtype=torch.int64, device=pools[0].device)
        for pool, each in zip(pools, self.tensors, strict=True):
            pool.index_copy_(0, index, each[start : start + len(pages)].to(pool.device, non_blocking=True))

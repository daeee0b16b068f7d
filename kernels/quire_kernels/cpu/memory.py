"""Memory from the operating system: large pages for weights that are streamed, and prefaulting."""

from __future__ import annotations

import ctypes
import mmap
import sys
from functools import cache

import torch
from torch import Tensor

LARGE_PAGE = 1 << 21
MADV_DONTNEED = 4
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23
"""Linux, include/uapi/asm-generic/mman-common.h. MADV_POPULATE_WRITE exists since Linux 5.14; older kernels refuse
it.
"""
SMALL_PAGE = 1 << 12


NEW_MEMORY = 8 << 20
"""Bytes from which tensors get large pages: the system maps their memory anew each time, page by page."""


def empty(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """[rows, columns], uninitialized: the outputs of a product, such as the logits of many rows."""
    found = torch.empty(rows, columns, dtype=dtype)
    if found.nbytes >= NEW_MEMORY:
        use_large_pages(found)
    return found


def use_large_pages(tensor: Tensor) -> None:
    """Request large pages for a tensor whose memory was not written yet. Does nothing where they are not supported."""
    _advise(tensor, LARGE_PAGE, MADV_HUGEPAGE)


def map_zeros(num_bytes: int) -> Tensor:
    """uint8 [num_bytes] of zeros, in large pages, returned to the system as soon as the tensor is freed."""
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8)
    size = num_bytes if num_bytes < LARGE_PAGE else num_bytes + LARGE_PAGE
    # private, because large pages for shared memory are a separate system setting that is usually off
    memory = torch.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
    if size > num_bytes:
        memory = memory[-memory.data_ptr() % LARGE_PAGE :]
    memory = memory[:num_bytes]
    use_large_pages(memory)
    return memory


def prefault(tensor: Tensor) -> None:
    """Have the system allocate the tensor's memory now. Contents stay, and other threads may access them meanwhile."""
    _advise(tensor, SMALL_PAGE, MADV_POPULATE_WRITE)


def return_memory(tensor: Tensor) -> bool:
    """Give the memory of a CPU tensor, which `map_zeros` made, back to the system; it then holds
    zeros, and gets memory at the next write. Returns whether the system did it.
    """
    return _advise(tensor, SMALL_PAGE, MADV_DONTNEED)


@cache  # each has classes of its own, which take long to make and to free
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def _advise(tensor: Tensor, unit: int, advice: int) -> bool:
    """Call madvise for the whole pages of a CPU tensor, on Linux only; whether it succeeded."""
    if not sys.platform.startswith("linux") or tensor.device.type != "cpu":
        return False
    begin = -(-tensor.data_ptr() // unit) * unit
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // unit * unit
    if begin >= end:
        return True
    return bool(_libc().madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice) == 0)

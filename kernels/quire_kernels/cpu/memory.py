"""Memory as the operating system gives it: in large pages where it is read as a stream, and in time."""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch
from torch import Tensor

LARGE_PAGE = 1 << 21
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23
"""Linux, include/uapi/asm-generic/mman-common.h; the second since 5.14, before which it is refused."""
SMALL_PAGE = 1 << 12


def use_large_pages(tensor: Tensor) -> None:
    """Ask for large pages under a tensor whose memory was not written yet. Does nothing where there are none."""
    _advise(tensor, LARGE_PAGE, MADV_HUGEPAGE)


def mapped(num_bytes: int) -> Tensor:
    """uint8 [num_bytes] of zeros, in large pages, that the system has back as soon as nobody holds it."""
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8)
    room = num_bytes if num_bytes < LARGE_PAGE else num_bytes + LARGE_PAGE
    # private: large pages under memory that could be shared are another setting of the system, which is off as a rule
    memory = torch.frombuffer(mmap.mmap(-1, room, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=torch.uint8)
    if room > num_bytes:
        memory = memory[-memory.data_ptr() % LARGE_PAGE :]
    memory = memory[:num_bytes]
    use_large_pages(memory)
    return memory


def populate(tensor: Tensor) -> None:
    """Have the system give the memory of a tensor now; contents stay, and others may read and write them meanwhile."""
    _advise(tensor, SMALL_PAGE, MADV_POPULATE_WRITE)


def _advise(tensor: Tensor, unit: int, advice: int) -> None:
    """Tell Linux about the whole units of memory in a tensor on the host; elsewhere nothing happens."""
    if not sys.platform.startswith("linux") or tensor.device.type != "cpu":
        return
    begin = -(-tensor.data_ptr() // unit) * unit
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // unit * unit
    if begin < end:
        ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), advice)

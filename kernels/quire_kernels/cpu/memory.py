"""Memory as the operating system gives it: in large pages where it is read as a stream, and in time."""

from __future__ import annotations

import ctypes
import sys

from torch import Tensor

LARGE_PAGE = 1 << 21
MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23
"""Linux, include/uapi/asm-generic/mman-common.h; the second since 5.14, before which it is refused."""
SMALL_PAGE = 1 << 12


def use_large_pages(tensor: Tensor) -> None:
    """Ask for large pages under a tensor whose memory was not written yet. Does nothing where there are none."""
    _advise(tensor, LARGE_PAGE, MADV_HUGEPAGE)


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

"""Large pages of the operating system, for memory that is read as a stream."""

from __future__ import annotations

import ctypes
import sys

from torch import Tensor

LARGE_PAGE = 1 << 21
MADV_HUGEPAGE = 14
"""Linux, include/uapi/asm-generic/mman-common.h."""


def use_large_pages(tensor: Tensor) -> None:
    """Ask for large pages under a tensor whose memory was not written yet. Does nothing where there are none."""
    if not sys.platform.startswith("linux") or tensor.device.type != "cpu":
        return
    begin = -(-tensor.data_ptr() // LARGE_PAGE) * LARGE_PAGE
    end = (tensor.data_ptr() + tensor.numel() * tensor.element_size()) // LARGE_PAGE * LARGE_PAGE
    if begin < end:
        libc = ctypes.CDLL(None)
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), MADV_HUGEPAGE)

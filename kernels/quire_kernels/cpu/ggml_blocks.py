"""Unpacks blocks of ggml's quantized types in C++ (`csrc/quantized/ggml_blocks.hpp`)."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int64, c_void_p
from typing import TYPE_CHECKING

from quire_kernels.cpu.build import BuildError
from quire_kernels.cpu.implementations import compiled
from quire_kernels.cpu.isa import available

if TYPE_CHECKING:
    from torch import Tensor

    from quire_kernels.cpu.library import Library

TYPES = (
    *("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4", "IQ4_XS"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"),
)
"""ggml's types, in the order of the C++ enum `BlockType`."""


class _BlockCodes(ctypes.Structure):
    """The C++ struct `BlockCodes`."""

    __slots__ = ()
    _fields_ = (
        ("blocks", c_void_p),
        ("count", c_int64),
        ("codes", c_void_p),
        ("scales", c_void_p),
        ("offsets", c_void_p),
    )


def compiled_unpacking() -> Library | None:
    """The library that unpacks blocks; None where there is none."""
    if not available():
        return None
    try:
        return compiled()
    except BuildError:
        return None


def unpack_blocks(
    library: Library, kind: str, blocks: int, count: int, codes: Tensor, scales: Tensor, offsets: Tensor | None
) -> str | None:
    """Fill codes (uint8), scales and offsets (float32), contiguous, from `count` blocks at the address `blocks`.

    Returns which numbers are not all finite, "a scale" or "an offset"; None if all are.
    """
    last = None if offsets is None else offsets.data_ptr()
    to = _BlockCodes(blocks, count, codes.data_ptr(), scales.data_ptr(), last)
    finite = library.functions.quire_unpack_blocks(TYPES.index(kind), byref(to))
    return None if finite == 3 else "an offset" if finite & 1 else "a scale"

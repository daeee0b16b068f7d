"""Lossless compression of bfloat16 matrices to twelve bits per element, in the format of
`csrc/gemm/bf16_compressed.hpp`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof, c_int64, c_uint8
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.structs import POINTER
from quire_kernels.low_rank import ALIGNMENT

GROUP_VECTORS, RARE_BYTES = 4, 8
"""Vectors of a group, and bytes of a rare value; must equal `csrc/gemm/bf16_compressed.hpp`."""

MIN_COMMON = 64
"""A matrix with more than one rare value in this many elements is not compressed: reading their list would dominate."""


class CompressedStruct(ctypes.Structure):
    """The C++ struct `Compressed` in `csrc/gemm/bf16_compressed.hpp`."""

    __slots__ = ()
    _fields_ = (("at", POINTER), ("book", POINTER))


class Codebook(ctypes.Structure):
    """The C++ struct `Codebook` in `csrc/gemm/bf16_compressed.hpp`; the rare values follow it in memory."""

    __slots__ = ()
    _fields_ = (("upper", c_uint8 * 16), ("num_rare", c_int64))


@dataclass(frozen=True, slots=True)
class CompressedLayout:
    """Storage of a matrix of `elements` elements, padding included. book: None if it is not compressed."""

    elements: int
    itemsize: int
    book: Codebook | None = None

    @property
    def bytes(self) -> int:
        """Size in memory, a multiple of `ALIGNMENT`."""
        numbers = self.elements * self.itemsize if self.book is None else self.elements * 3 // 2
        return self._book_bytes + -(-numbers // ALIGNMENT) * ALIGNMENT

    @property
    def _book_bytes(self) -> int:
        used = 0 if self.book is None else ctypes.sizeof(Codebook) + RARE_BYTES * self.book.num_rare
        return -(-used // ALIGNMENT) * ALIGNMENT

    @property
    def staging(self) -> Tensor | None:
        """Zeros to write the elements to before they are compressed; None if they are written to their final
        address.
        """
        return None if self.book is None else torch.zeros(self.elements, dtype=torch.bfloat16)

    def stored(self, library: Library, at: int, staging: Tensor | None) -> CompressedStruct:
        """The matrix at an address; compresses it from `staging` to that address if it is compressed."""
        if self.book is None or staging is None:
            return CompressedStruct(at, None)
        ctypes.memmove(at, addressof(self.book), ctypes.sizeof(Codebook))
        numbers = at + self._book_bytes
        library.functions.quire_compress(staging.data_ptr(), self.elements, at, numbers)
        return CompressedStruct(numbers, at)


def store(
    library: Library, parts: Sequence[Tensor], elements: int, vectors: int, dtype: torch.dtype
) -> CompressedLayout:
    """Choose how to store `parts` in `elements` elements of `dtype`; the remaining elements are zeros.

    parts: of data types in `DTYPES`. vectors: readers read multiples of this many vectors. AMX tiles read uncompressed
    matrices.
    """
    if library.isa.tiles or dtype != torch.bfloat16 or not elements or vectors % GROUP_VECTORS:
        return CompressedLayout(elements, dtype.itemsize)
    counts, book = (c_int64 * 256)(), Codebook()
    for part in parts:
        library.functions.quire_count_upper_bytes(DTYPES[part.dtype], part.data_ptr(), part.numel(), counts)
    book.num_rare = library.functions.quire_choose_upper_bytes(counts, book.upper)
    pays = book.num_rare * MIN_COMMON <= elements
    return CompressedLayout(elements, dtype.itemsize, book if pays else None)

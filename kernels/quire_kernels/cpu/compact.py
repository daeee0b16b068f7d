"""Matrices of bfloat16 in twelve bits a number, without loss, as `csrc/compact.hpp` reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof, c_int64, c_uint8
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.cpu.layout import POINTER
from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.low_rank import ALIGNMENT

GROUP_VECTORS, RARE_BYTES = 4, 8
"""As in `csrc/compact.hpp`."""

FEWEST_COMMON = 64
"""A matrix with more than one rare value among so many stays as it is: the list of them would be what is read."""


class Stored(ctypes.Structure):
    """See `csrc/compact.hpp`."""

    _fields_ = (("at", POINTER), ("book", POINTER))


class Book(ctypes.Structure):
    """See `csrc/compact.hpp`; the rare values follow."""

    _fields_ = (("upper", c_uint8 * 16), ("num_rare", c_int64))


@dataclass(frozen=True, slots=True)
class Store:
    """How a matrix of `elements` numbers, padding included, is stored; without `book` as it is."""

    elements: int
    itemsize: int
    book: Book | None = None

    @property
    def bytes(self) -> int:
        """Of memory, a multiple of `ALIGNMENT`."""
        numbers = self.elements * self.itemsize if self.book is None else self.elements * 3 // 2
        return self._book_bytes + -(-numbers // ALIGNMENT) * ALIGNMENT

    @property
    def _book_bytes(self) -> int:
        used = 0 if self.book is None else ctypes.sizeof(Book) + RARE_BYTES * self.book.num_rare
        return -(-used // ALIGNMENT) * ALIGNMENT

    @property
    def room(self) -> Tensor | None:
        """Zeros to lay the numbers in, if they cannot be laid where they will stand."""
        return None if self.book is None else torch.zeros(self.elements, dtype=torch.bfloat16)

    def stored(self, library: Library, at: int, room: Tensor | None) -> Stored:
        """The matrix at an address: laid there, or in `room`, from where it gets there now."""
        if self.book is None or room is None:
            return Stored(at, None)
        ctypes.memmove(at, addressof(self.book), ctypes.sizeof(Book))
        numbers = at + self._book_bytes
        library.functions.quire_make_compact(room.data_ptr(), self.elements, at, numbers)
        return Stored(numbers, at)


def store(library: Library, parts: Sequence[Tensor], elements: int, vectors: int, dtype: torch.dtype) -> Store:
    """How to store `parts` (of a type in `DTYPES`) in `elements` numbers of `dtype`, the others being zeros.

    vectors: what is read at once are multiples of so many. AMX tiles read matrices as they are.
    """
    if library.isa.tiles or dtype != torch.bfloat16 or not elements or vectors % GROUP_VECTORS:
        return Store(elements, dtype.itemsize)
    counts, book = (c_int64 * 256)(), Book()
    for part in parts:
        library.functions.quire_count_upper_bytes(DTYPES[part.dtype], part.data_ptr(), part.numel(), counts)
    book.num_rare = library.functions.quire_choose_upper_bytes(counts, book.upper)
    pays = book.num_rare * FEWEST_COMMON <= elements
    return Store(elements, dtype.itemsize, book if pays else None)

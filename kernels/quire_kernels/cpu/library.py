"""The compiled ops as Python functions, through ctypes; `csrc/library.cpp` is the other side.

Calls release Python's lock. They compute on torch's own pool of threads: the OpenMP runtime that torch has
loaded is visible to every library of the process, and ours names none of its own.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.build import BuildError, library
from quire_kernels.cpu.isa import InstructionSet, available
from quire_kernels.cpu.layout import Instruction, PackedMatrix, PanelBook, Step
from quire_kernels.cpu.memory import use_large_pages

PIECE = 1 << 23
"""Units (of four bytes) of memory taken at once."""

ROWS_WORTH_THREADS = 16
"""Fewer rows of a matrix are unpacked sooner than a second thread would have begun."""

MOST_APART = 16
"""Compact panels have at most one such part of their numbers' bytes for values that stand apart."""

COMPACT_BYTES = 1.5
"""Of one element, in compact panels of bfloat16."""

PANEL, INPUT_STEP = 32, 32
"""As in `csrc/packed.hpp`."""

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""What the ops compute in; the number is `is_bf16` on the other side."""


class PanelMemory:
    """Where packed matrices lie: side by side in large pieces of memory, so that the system can use large pages.

    A piece is freed when the last matrix in it is.
    """

    def __init__(self) -> None:
        self._piece = torch.empty(0, dtype=torch.int32)

    def take(self, units: int) -> Tensor:
        """int32 [units], aligned to 64 bytes; its contents may be anything."""
        if units > len(self._piece):
            self._piece = torch.empty(max(units + 16, PIECE), dtype=torch.int32)
            use_large_pages(self._piece)
            self._piece = self._piece[-self._piece.data_ptr() // 4 % 16 :]
        taken, self._piece = self._piece[:units], self._piece[-(-units // 16) * 16 :]
        return taken


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix in panels. units: their memory, aligned to 64 bytes; book: of compact ones."""

    packed: PackedMatrix
    units: Tensor
    book: PanelBook | None


def panel_units(inputs: int, dtype: torch.dtype) -> int:
    """Units of a panel that is not compact."""
    return -(-inputs // INPUT_STEP) * INPUT_STEP * PANEL * dtype.itemsize // 4


@dataclass(frozen=True, eq=False)
class Library:
    """The functions of one compiled library."""

    isa: InstructionSet
    functions: Any
    panels: PanelMemory

    def run(self, step: Step, program: ctypes.Array[Instruction]) -> None:
        """Compute a program: every pointer in `step` and `program` must stay valid until this returns."""
        self.functions.quire_run(ctypes.byref(step), program, len(program))

    def pack(self, weight: Tensor, halves: bool) -> PackedWeight:
        """A matrix [outputs, inputs] in panels.

        Compact, where it is bfloat16 with few exponents and vectors multiply it (tiles read panels as they are).
        """
        (outputs, inputs), kind = weight.shape, DTYPES[weight.dtype]
        weight = weight.detach().contiguous()
        panels = self.functions.quire_panels(outputs, int(halves))
        panel = panel_units(inputs, weight.dtype)
        shape, threads = (outputs, inputs, int(halves)), torch.get_num_threads()
        book = None if self.isa.tiles or weight.dtype != torch.bfloat16 else self._book(weight, shape, panel)
        if book is None:
            units = self.panels.take(panels * panel)
            self.functions.quire_pack(kind, weight.data_ptr(), *shape, units.data_ptr(), threads)
            return PackedWeight(PackedMatrix(units.data_ptr(), *shape, None), units, None)
        units = self.panels.take(panels * (book.head // 4 + panel * 3 // 4))
        packed = PackedMatrix(units.data_ptr(), *shape, ctypes.addressof(book))
        self.functions.quire_pack_compact(weight.data_ptr(), ctypes.byref(packed), threads)
        return PackedWeight(packed, units, book)

    def _book(self, weight: Tensor, shape: tuple[int, int, int], panel: int) -> PanelBook | None:
        """For compact panels, if they are worth it: values with other exponents than most stand apart."""
        book = PanelBook()
        self.functions.quire_plan_compact(weight.data_ptr(), *shape, ctypes.byref(book), torch.get_num_threads())
        return book if book.head * MOST_APART <= panel * 4 else None

    def unpack(self, packed: PackedMatrix, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows `ids` (int64) of a packed matrix: [len(ids), inputs]."""
        out = torch.empty(len(ids), packed.inputs, dtype=dtype)
        threads = torch.get_num_threads() if len(ids) >= ROWS_WORTH_THREADS else 1
        self.functions.quire_unpack(
            DTYPES[dtype], ctypes.byref(packed), ids.data_ptr(), len(ids), out.data_ptr(), threads
        )
        return out


@cache
def load(isa: InstructionSet | None = None) -> Library:
    """The ops for an instruction set, None = the best one here; compiled if need be. Raises BuildError."""
    if isa is None:
        here = available()
        if not here:
            raise BuildError("this machine has none of the instruction sets (AVX2 at least)")
        isa = here[0]
    functions = ctypes.CDLL(str(library(isa)))
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    _declare(functions.quire_run, None, pointer, pointer, size)
    _declare(functions.quire_pack, None, number, pointer, size, size, number, pointer, number)
    _declare(functions.quire_unpack, None, number, pointer, pointer, size, pointer, number)
    _declare(functions.quire_plan_compact, None, pointer, size, size, number, pointer, number)
    _declare(functions.quire_pack_compact, None, pointer, pointer, number)
    _declare(functions.quire_panels, size, size, number)
    _declare(functions.quire_pack_int8, None, number, pointer, size, size, number, pointer, pointer, number)
    _declare(functions.quire_unpack_int8, None, number, pointer, pointer, pointer, size, pointer, number)
    _declare(functions.quire_pack_lanes, None, number, number, pointer, size, size, size, size, pointer)
    _declare(functions.quire_count_upper_bytes, None, number, pointer, size, pointer)
    _declare(functions.quire_choose_upper_bytes, size, pointer, pointer)
    _declare(functions.quire_make_compact, None, pointer, size, pointer, pointer)
    _declare(functions.quire_argmax, None, pointer, pointer, number)
    _declare(functions.quire_mask_logits, None, pointer, pointer, number)
    _declare(functions.quire_draw, None, pointer, pointer, pointer, number)
    _declare(functions.quire_logprobs, None, pointer, pointer, pointer, number)
    _declare(functions.quire_prepare, ctypes.c_int)
    if functions.quire_prepare():
        raise BuildError(f"the system does not let this process use {isa.name}")
    return Library(isa, functions, PanelMemory())


def _declare(function: Any, result: Any, *arguments: Any) -> None:
    function.restype, function.argtypes = result, arguments

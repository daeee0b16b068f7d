"""The compiled ops as Python functions, through ctypes; `csrc/library.cpp` is the other side.

Calls release the GIL, but see `Library.loading`. They run on torch's own thread pool: the OpenMP runtime that torch has
loaded is visible to every library of the process, and this library links to none of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.build import BuildError, library
from quire_kernels.cpu.isa import InstructionSet, available
from quire_kernels.cpu.memory import use_large_pages
from quire_kernels.cpu.structs import GenerationStruct, Instruction, PackedMatrix, PanelCodebook, StepStruct

BLOCK_UNITS = 1 << 23
"""Units (of four bytes) of memory allocated at once."""

ROWS_WORTH_THREADS = 16
"""Fewer rows than this are unpacked faster by one thread than a second thread would start."""

MAX_RARE_SHARE = 16
"""Maximum share, 1 / MAX_RARE_SHARE of a panel's bytes, of values that a compressed panel stores separately."""

COMPRESSED_BYTES = 1.5
"""Bytes of one element in compressed panels of bfloat16."""

PANEL, INPUT_STEP = 32, 32
"""Outputs of a panel, and the multiple that inputs are padded to; must equal `csrc/gemm/packed.hpp`."""

DTYPES = {torch.float32: 0, torch.bfloat16: 1}
"""Data types of the ops; the number is `is_bf16` in C++."""


class PanelMemory:
    """Memory of packed matrices: contiguous in large blocks, so that the system can use large pages.

    A block is freed with the last matrix in it.
    """

    def __init__(self) -> None:
        self._block = torch.empty(0, dtype=torch.int32)

    def take(self, units: int) -> Tensor:
        """int32 [units], uninitialized, aligned to 64 bytes."""
        if units > len(self._block):
            self._block = torch.empty(max(units + 16, BLOCK_UNITS), dtype=torch.int32)
            use_large_pages(self._block)
            self._block = self._block[-self._block.data_ptr() // 4 % 16 :]
        taken, self._block = self._block[:units], self._block[-(-units // 16) * 16 :]
        return taken

    def give_back(self, taken: Tensor) -> None:
        """Use the memory taken last again."""
        size = -(-len(taken) // 16) * 16
        if taken.data_ptr() + 4 * size == self._block.data_ptr():
            self._block = taken.as_strided((size + len(self._block),), (1,), taken.storage_offset())


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix in panels. units: their memory, aligned to 64 bytes. book: code book of compressed panels, else None."""

    packed: PackedMatrix
    units: Tensor
    book: PanelCodebook | None


def row_addresses(parts: Sequence[Tensor]) -> Tensor:
    """The addresses of the rows of contiguous matrices, one matrix after the other: int64 [rows]."""
    steps = [part.data_ptr() + torch.arange(len(part)) * (part.shape[1] * part.itemsize) for part in parts]
    return torch.cat(steps)


def panel_units(inputs: int, dtype: torch.dtype) -> int:
    """Units of an uncompressed panel."""
    return -(-inputs // INPUT_STEP) * INPUT_STEP * PANEL * dtype.itemsize // 4


@dataclass(frozen=True, eq=False)
class Library:
    """The functions of one compiled library. keeping_gil: the same ones, which keep the GIL; None: there are none."""

    isa: InstructionSet
    functions: Any
    panels: PanelMemory
    keeping_gil: Any = None
    _loading: set[int] = field(default_factory=set, init=False)

    def run(self, step: StepStruct, program: ctypes.Array[Instruction], waits: bool = False) -> None:
        """Run a program. Every pointer in `step` and `program` must stay valid until this returns.

        waits: whether it waits for other processes; threads that learn that one is lost need the GIL.
        """
        keeps = self._loading and not waits and self.keeping_gil is not None and get_ident() not in self._loading
        functions = self.keeping_gil if keeps else self.functions
        functions.quire_run(ctypes.byref(step), program, len(program))

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Around the load of a model in a thread of idle priority: programs that other threads run keep the GIL,
        unless they wait for other processes.

        Python code of the load then stands still during a step. It would take a core from a thread of the step at the
        next interrupt, for a tick of the system's clock (4 ms): each time that a thread gets the GIL it wakes up with a
        new claim, which Linux' EEVDF scheduler grants even at idle priority.
        """
        self._loading.add(get_ident())
        try:
            yield
        finally:
            self._loading.discard(get_ident())

    def generate(self, step: StepStruct, program: ctypes.Array[Instruction], generation: GenerationStruct) -> None:
        """Run a program several times, each time on the tokens that the last run predicts."""
        self.functions.quire_generate(ctypes.byref(step), program, len(program), ctypes.byref(generation))

    def pack(self, weight: Tensor | Sequence[Tensor], halves: bool, compresses: bool = True) -> PackedWeight:
        """Pack a matrix [outputs, inputs], or parts [n, inputs] of its rows, in panels.

        compresses: panels are compressed if the matrix is bfloat16 with few distinct exponents.
        """
        parts = [weight] if isinstance(weight, Tensor) else weight
        parts = [part.detach().contiguous() for part in parts]
        inputs, dtype = parts[0].shape[1], parts[0].dtype
        rows, shape = row_addresses(parts), (sum(map(len, parts)), inputs, int(halves))
        if compresses and dtype == torch.bfloat16:
            for exact in (False, True):
                if (compressed := self._pack_compressed(rows, shape, exact)) is not None:
                    return compressed
        units = self.panels.take(self.functions.quire_panels(shape[0], shape[2]) * panel_units(inputs, dtype))
        self.functions.quire_pack(DTYPES[dtype], rows.data_ptr(), *shape, units.data_ptr(), torch.get_num_threads())
        return PackedWeight(PackedMatrix(units.data_ptr(), *shape, None), units, None)

    def _pack_compressed(self, rows: Tensor, shape: tuple[int, int, int], exact: bool) -> PackedWeight | None:
        """Compressed panels, if compression pays; values with rare exponents are stored separately.

        exact: these values are counted before, else a sample says how many there may be, and None also means that some
        panel has more.
        """
        book, threads, panel = PanelCodebook(), torch.get_num_threads(), panel_units(shape[1], torch.bfloat16)
        self.functions.quire_plan_compression(rows.data_ptr(), *shape, int(exact), ctypes.byref(book), threads)
        if book.head * MAX_RARE_SHARE > panel * 4:
            return None
        panels = self.functions.quire_panels(shape[0], shape[2])
        units = self.panels.take(panels * (book.head // 4 + panel * 3 // 4))
        packed = PackedMatrix(units.data_ptr(), *shape, ctypes.addressof(book))
        if self.functions.quire_pack_compressed(rows.data_ptr(), ctypes.byref(packed), threads):
            return PackedWeight(packed, units, book)
        self.panels.give_back(units)
        return None

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
    """The ops for an instruction set, None = the best one of this machine; compiled if necessary. Raises BuildError."""
    if isa is None:
        here = available()
        if not here:
            raise BuildError(
                "this machine supports none of the instruction sets (at least AVX2, or AArch64 with NEON, is required)"
            )
        isa = here[0]
    path = str(library(isa))
    return bound(isa, ctypes.CDLL(path), ctypes.PyDLL(path))


def bound(isa: InstructionSet, functions: Any, keeping_gil: Any = None) -> Library:
    """The ops of a loaded library, as ctypes has them. Raises BuildError if the system denies the instruction set."""
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for each in (functions, keeping_gil) if keeping_gil is not None else (functions,):
        _declare(each.quire_run, None, pointer, pointer, size)
    _declare(functions.quire_generate, None, pointer, pointer, size, pointer)
    _declare(functions.quire_pack, None, number, pointer, size, size, number, pointer, number)
    _declare(functions.quire_unpack, None, number, pointer, pointer, size, pointer, number)
    _declare(functions.quire_plan_compression, None, pointer, size, size, number, number, pointer, number)
    _declare(functions.quire_pack_compressed, number, pointer, pointer, number)
    _declare(functions.quire_panels, size, size, number)
    _declare(functions.quire_pack_int8, None, number, pointer, size, size, number, pointer, pointer, number)
    _declare(functions.quire_unpack_int8, None, number, pointer, pointer, pointer, size, pointer, number)
    _declare(functions.quire_pack_quantized, number, pointer, pointer, pointer, pointer, number)
    _declare(functions.quire_unpack_quantized, None, number, pointer, pointer, pointer, size, pointer, number)
    _declare(functions.quire_pack_blocks, number, pointer, pointer, pointer, pointer, number)
    _declare(functions.quire_unpack_blocks, number, number, pointer)
    _declare(functions.quire_search_scales, number, number, pointer, pointer, number)
    _declare(functions.quire_pack_lanes, None, number, number, pointer, size, size, size, size, pointer)
    _declare(functions.quire_count_upper_bytes, None, number, pointer, size, pointer)
    _declare(functions.quire_choose_upper_bytes, size, pointer, pointer)
    _declare(functions.quire_compress, None, pointer, size, pointer, pointer)
    _declare(functions.quire_argmax, None, pointer, pointer, number)
    _declare(functions.quire_mask_logits, None, pointer, pointer, number)
    _declare(functions.quire_sample, None, pointer, pointer, pointer, number)
    _declare(functions.quire_logprobs, None, pointer, pointer, pointer, number)
    _declare(functions.quire_begin_attempt, number, pointer, ctypes.c_uint64)
    _declare(functions.quire_gather_columns, None, pointer, pointer, pointer, size, pointer, number)
    _declare(functions.quire_group_bytes, size, pointer)
    _declare(functions.quire_prepare, ctypes.c_int)
    if functions.quire_prepare():
        raise BuildError(f"the system does not let this process use {isa.name}")
    return Library(isa, functions, PanelMemory(), keeping_gil)


def _declare(function: Any, result: Any, *arguments: Any) -> None:
    function.restype, function.argtypes = result, arguments

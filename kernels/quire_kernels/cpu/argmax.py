"""Argmax of a linear layer's outputs, computed in the same C++ call while the outputs are in the CPU caches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import addressof, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from weakref import proxy

import torch
from torch import Tensor

from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.memory import empty
from quire_kernels.cpu.structs import Instruction, Op, StepStruct, TensorView

if TYPE_CHECKING:
    from quire_kernels.cpu.linear.int8 import Int8Linear
    from quire_kernels.cpu.linear.packed import PackedLinear
    from quire_kernels.cpu.linear.quantized import QuantizedLinear

    Matrix: TypeAlias = PackedLinear | Int8Linear | QuantizedLinear

BLOCK = 8192
"""Logits that one thread searches at a time; must equal `LOGITS_BLOCK` in `csrc/sampling/sampling.hpp`."""

MAX_OUTPUTS = 64 << 20
"""Bytes of outputs that a search keeps, since new memory is slow. More rows are searched part by part; each part reads
the matrix again, in a small part of the time of its product."""


class CpuArgmax:
    """Argmax of one matrix: x [rows, inputs] -> the result of `ops.argmax` on its float32 outputs, as a list."""

    def __init__(self, matrix: Matrix, scratch: int = 0) -> None:
        """scratch: columns of memory that the product needs beside each row of x."""
        self._matrix: Matrix = cast("Matrix", proxy(matrix))  # it refers to this
        self._scratch = scratch
        self._idle: list[Search] = []  # one for each thread that has searched concurrently

    def __call__(self, x: Tensor) -> list[int]:
        """Raises ValueError for an x of another shape or data type."""
        x = x if x.stride(-1) == 1 else x.contiguous()
        found = list[int]()
        for part in x.tensor_split(max(1, -(-len(x) * self._matrix.packed.outputs * 4 // MAX_OUTPUTS))):
            with self.searching(part) as search:
                found += search.run(self._matrix.library)
        return found

    @contextmanager
    def searching(self, x: Tensor) -> Iterator[Search]:
        """A search in the rows of x, whose columns are contiguous. Raises ValueError."""
        matrix = self._matrix
        if x.dim() != 2 or x.shape[1] != matrix.packed.inputs or x.dtype != matrix.dtype:
            expected = f"expected [rows, {matrix.packed.inputs}] in {matrix.dtype}"
            raise ValueError(f"argmax: {expected}, got {list(x.shape)} in {x.dtype}")
        search = self._idle.pop() if self._idle else Search(matrix, self._scratch)
        search.start(x)
        yield search
        self._idle.append(search)


class Search:
    """A program of one product and one argmax, reused between calls."""

    X, SCRATCH, OUTPUTS, PIECES, FOUND = range(5)  # its buffers

    def __init__(self, matrix: Matrix, scratch: int) -> None:
        self._outputs, self._pieces = matrix.packed.outputs, -(-matrix.packed.outputs // BLOCK)
        product, outputs = matrix.instruction, TensorView(self.OUTPUTS, 1, 0, self._outputs, self._outputs)
        product.inputs[0] = TensorView(buffer=self.X, parts=1, width=matrix.packed.inputs)
        product.inputs[1] = TensorView(self.SCRATCH, 1, 0, scratch, scratch)
        product.out, product.wide = outputs, 1
        argmax = Instruction(op=Op.ARGMAX, out=TensorView(buffer=self.FOUND, parts=1, width=1))
        argmax.inputs[0], argmax.inputs[1] = outputs, TensorView(buffer=self.PIECES, parts=1)
        self.program = (Instruction * 2)(product, argmax)
        self._buffers = (c_void_p * 5)()
        self.step = StepStruct(is_bf16=DTYPES[matrix.dtype], buffers=addressof(self._buffers))
        self._scratch = scratch * matrix.dtype.itemsize
        self._rows = 0
        self._memory: tuple[Any, ...] = ()

    def start(self, x: Tensor) -> None:
        """Search the rows of x, which must stay where they are, in the next runs."""
        rows, step = len(x), self.step
        if rows > self._rows:
            self._grow(rows)
        self._buffers[self.X] = x.data_ptr()
        self.program[0].inputs[0].stride = x.stride(0)
        step.tokens, step.threads = rows, torch.get_num_threads()

    def run(self, library: Library) -> list[int]:
        library.run(self.step, self.program)
        found: list[int] = self._memory[-1][: self.step.tokens]
        return found

    @property
    def found(self) -> int:
        """Address of the tokens that a run finds, int64."""
        return addressof(self._memory[-1])

    def _grow(self, rows: int) -> None:
        """Allocate memory for this many rows of x."""
        outputs, pieces = empty(rows, self._outputs, torch.float32), torch.empty(rows * self._pieces)
        scratch, found = torch.empty(rows * self._scratch, dtype=torch.uint8), (c_int64 * rows)()
        self._memory = scratch, outputs, pieces, found
        self._buffers[self.SCRATCH :] = [*(part.data_ptr() for part in (scratch, outputs, pieces)), addressof(found)]
        self._rows = rows

"""Argmax: the place of the largest output of a product, found while its outputs are still in the caches."""

from __future__ import annotations

from ctypes import addressof, c_int64, c_void_p
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quire_kernels.cpu.layout import Instruction, Op, Step, View
from quire_kernels.cpu.library import DTYPES, Library

if TYPE_CHECKING:
    from quire_kernels.cpu.matrix import Matrix
    from quire_kernels.cpu.matrix_int8 import ByteMatrix

PIECE = 8192
"""As in `csrc/sampling.hpp`."""

MOST_KEPT = 64 << 20
"""Bytes of memory for outputs that stay from call to call: what is used again is in the caches, and no new pages."""


class Argmax:
    """Of one matrix. Called with x [rows, inputs] it gives what `ops.argmax` gives of the product in float32."""

    def __init__(self, matrix: Matrix | ByteMatrix, room: int = 0) -> None:
        """room: columns that the product needs beside each row of x."""
        self._matrix, self._room = matrix, room
        self._idle: list[_Search] = []  # as many as there were threads that searched at once

    def __call__(self, x: Tensor) -> list[int]:
        """See the class. Raises ValueError for another x."""
        matrix = self._matrix
        if x.dim() != 2 or x.shape[1] != matrix.packed.inputs or x.dtype != matrix.dtype:
            takes = f"a matrix takes [rows, {matrix.packed.inputs}] in {matrix.dtype}"
            raise ValueError(f"argmax: {takes}, got {list(x.shape)} in {x.dtype}")
        if x.stride(1) != 1:
            x = x.contiguous()
        search = self._idle.pop() if self._idle else _Search(matrix, self._room)
        found = search.run(matrix.library, x)
        self._idle.append(search)
        return found


class _Search:
    """A program of a product and an argmax, kept from call to call."""

    X, ROOM, OUTPUTS, PIECES, FOUND = range(5)  # its buffers

    def __init__(self, matrix: Matrix | ByteMatrix, room: int) -> None:
        self._outputs, self._pieces = matrix.packed.outputs, -(-matrix.packed.outputs // PIECE)
        product, outputs = matrix.instruction, View(self.OUTPUTS, 1, 0, self._outputs, self._outputs)
        product.inputs[0] = View(buffer=self.X, parts=1, width=matrix.packed.inputs)
        product.inputs[1] = View(self.ROOM, 1, 0, room, room)
        product.out, product.wide = outputs, 1
        argmax = Instruction(op=Op.ARGMAX, out=View(buffer=self.FOUND, parts=1, width=1))
        argmax.inputs[0], argmax.inputs[1] = outputs, View(buffer=self.PIECES, parts=1)
        self._program = (Instruction * 2)(product, argmax)
        self._buffers = (c_void_p * 5)()
        self._step = Step(is_bf16=DTYPES[matrix.dtype], buffers=addressof(self._buffers))
        self._room = room * matrix.dtype.itemsize
        self._rows = 0
        self._memory: tuple[Any, ...] = ()

    def run(self, library: Library, x: Tensor) -> list[int]:
        rows, step = len(x), self._step
        if rows > self._rows:
            self._make_room(rows)
        self._buffers[self.X] = x.data_ptr()
        self._program[0].inputs[0].stride = x.stride(0)
        step.tokens, step.threads = rows, torch.get_num_threads()
        library.run(step, self._program)
        found: list[int] = self._memory[-1][:rows]
        if rows * self._outputs * 4 > MOST_KEPT:
            self._rows, self._memory = 0, ()
        return found

    def _make_room(self, rows: int) -> None:
        """For as many rows of x."""
        outputs, pieces = torch.empty(rows * self._outputs), torch.empty(rows * self._pieces)
        room, found = torch.empty(rows * self._room, dtype=torch.uint8), (c_int64 * rows)()
        self._memory = room, outputs, pieces, found
        self._buffers[self.ROOM :] = [*(part.data_ptr() for part in (room, outputs, pieces)), addressof(found)]
        self._rows = rows

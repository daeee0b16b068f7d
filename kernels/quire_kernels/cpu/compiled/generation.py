"""Greedy generation with a program: several tokens of each row in one native call."""

from __future__ import annotations

from ctypes import addressof
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.argmax import CpuArgmax
from quire_kernels.cpu.compiled.program import Program
from quire_kernels.cpu.linear.packed import PackedLinear
from quire_kernels.cpu.structs import GenerationStruct


def generate(
    program: Program,
    fwd: Any,
    table: Tensor | PackedLinear,
    scale: float,
    argmax: CpuArgmax,
    tokens: Tensor,
    slots: Tensor,
) -> Tensor | None:
    """The tokens of `CompiledBlocks.generate`; None if the program needs more of a step than its positions."""
    length, rows = slots.shape
    if not program.may_generate(fwd, length):
        return None
    packed = table.packed if isinstance(table, PackedLinear) else None
    width = table.inputs if isinstance(table, PackedLinear) else table.shape[1]
    x = torch.empty(rows, width, dtype=table.dtype)
    angles = program.prepare(x, fwd)
    found = torch.empty(length + 1, rows, dtype=torch.int64)
    found[0] = tokens
    with argmax.searching(program.result_rows(rows)) as search:
        generation = GenerationStruct(
            packed=None if packed is None else addressof(packed),
            table=table.data_ptr() if isinstance(table, Tensor) else None,
            width=width,
            scale=scale,
            search=addressof(search.step),
            search_program=addressof(search.program),
            search_count=len(search.program),
            found=search.found,
            length=length,
            slots=slots.data_ptr(),
            tokens=found.data_ptr(),
            positions=fwd.positions.data_ptr(),
            contexts=fwd.rows.contexts.data_ptr(),
        )
        program.generate(generation)
    del angles  # read by the program until here
    return found[1:]

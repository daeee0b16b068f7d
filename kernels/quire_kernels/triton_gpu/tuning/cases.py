"""The launches that are measured: products of one row, products with codes, and attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels.ops import AttentionMetadata
from quire_kernels.triton_gpu.attention.op import paged_attention
from quire_kernels.triton_gpu.attention.tiles import Widths, default_settings, shape_of, tiles_of
from quire_kernels.triton_gpu.linear import DEFAULT, LARGEST, TritonLinear
from quire_kernels.triton_gpu.quantized.matrix import FLOAT4, FLOAT8, INTEGER, WHOLE_ROW, WORD_BITS, DeviceMatrix
from quire_kernels.triton_gpu.quantized.op import ROW, TritonQuantizedLinear, default_tiles
from quire_kernels.triton_gpu.tuning.launch_table import LaunchTable, matrix_shape
from quire_kernels.triton_gpu.tuning.settings import LaunchSettings
from quire_kernels.triton_gpu.tuning.timing import CACHE_BYTES

ROWS = (16, 32, 64)
PAGE = 16


@dataclass(frozen=True)
class TuningCase:
    """One launch. calls: makes calls with a table of launches, each with other memory."""

    op: str
    shape: str
    default: LaunchSettings
    calls: Callable[[LaunchTable], Sequence[Callable[[], Any]]]


def _copies(moved: float) -> int:
    return max(1, min(16, int(CACHE_BYTES // moved)))


def row_cases(outputs: int, inputs: int, device: torch.device, dtype: torch.dtype) -> Iterator[TuningCase]:
    """Of one row and a matrix, unless it is the library's."""
    if outputs * inputs > LARGEST:
        return
    weight = torch.randn(outputs, inputs, device=device, dtype=dtype)
    x = torch.randn(1, inputs, device=device, dtype=dtype)
    weights = [weight.clone() for _ in range(_copies(weight.numel() * weight.element_size()))]

    def calls(table: LaunchTable) -> list[Callable[[], Any]]:
        settings = table.find("linear", matrix_shape(weight), DEFAULT)
        return [partial(TritonLinear(each, None, settings), x) for each in weights]

    yield TuningCase("linear", matrix_shape(weight), DEFAULT, calls)


@dataclass(frozen=True)
class CodeForm:
    """Of a matrix of codes. run: codes that lie one after the other. group: inputs with one scale, None = all."""

    bits: int
    run: int
    group: int | None
    kind: int


CODE_FORMS = {
    "int4": CodeForm(4, 8, 128, INTEGER),
    "fp8": CodeForm(8, 8, None, FLOAT8),
    "mxfp4": CodeForm(4, 4, 32, FLOAT4),
}


def random_codes(outputs: int, inputs: int, form: CodeForm, device: torch.device) -> DeviceMatrix:
    """A matrix of random codes, none of which is NaN."""
    words = torch.randint(-(2**31), 2**31, (outputs, inputs * form.bits // WORD_BITS), device=device).int()
    words = words & 0x7E7E7E7E if form.kind == FLOAT8 else words
    group = form.group or inputs
    of_group = WHOLE_ROW if form.group is None else group * form.bits // WORD_BITS
    scales = torch.rand(outputs, inputs // group, device=device).bfloat16() / 100
    offsets = scales / 2 if form.kind == INTEGER else None
    shape = outputs, inputs
    return DeviceMatrix(shape, words, scales, offsets, scales, None, form.bits, form.run, of_group, form.kind, 0)


def code_cases(outputs: int, inputs: int, name: str, device: torch.device) -> Iterator[TuningCase]:
    """Of a matrix of codes: one row, and tiles of rows."""
    form = CODE_FORMS[name]
    matrices = [random_codes(outputs, inputs, form, device)]
    moved = outputs * inputs * matrices[0].element_bytes
    matrices += [random_codes(outputs, inputs, form, device) for _ in range(_copies(moved) - 1)]
    bound = TritonQuantizedLinear(matrices[0], None, torch.bfloat16, False, LaunchTable())

    def calls_of(x: Tensor, table: LaunchTable) -> list[Callable[[], Any]]:
        return [partial(TritonQuantizedLinear(each, None, torch.bfloat16, False, table), x) for each in matrices]

    for rows in (1, *ROWS):
        x = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
        default = ROW if rows == 1 else default_tiles(rows, form.bits)
        yield TuningCase("linear_quantized", bound.shape_of(rows), default, partial(calls_of, x))


@dataclass(frozen=True)
class AttentionHeads:
    """Of queries, of keys and values, and the width of both."""

    queries: int
    keys: int
    width: int


def rows_of(count: int, length: int, context: int, device: torch.device) -> AttentionMetadata:
    """Rows of `length` tokens each at the end of contexts, on pages that follow each other."""
    per_row = -(-context // PAGE)
    pages = torch.arange(count * per_row, device=device, dtype=torch.int32).view(count, per_row)
    starts = torch.arange(0, count * length + 1, length, dtype=torch.int32, device=device)
    lens, contexts = np.full(count, length, np.int32), np.full(count, context, np.int32)
    return AttentionMetadata(starts, torch.from_numpy(contexts).to(device), pages, lens, contexts, length, context)


def attention_cases(
    heads: AttentionHeads, rows: int, length: int, context: int, device: torch.device, dtype: torch.dtype
) -> Iterator[TuningCase]:
    """Of rows with `length` tokens each at the end of contexts."""
    metadata = rows_of(rows, length, context, device)
    shape = metadata.pages.numel(), PAGE, heads.keys, heads.width
    moved = 2 * rows * context * heads.keys * heads.width * dtype.itemsize
    pools = [
        (torch.randn(shape, device=device).to(dtype), torch.randn(shape, device=device).to(dtype))
        for _ in range(_copies(moved))
    ]
    q = torch.randn(rows * length, heads.queries, heads.width, device=device).to(dtype)
    widths = Widths.from_strides(heads.width, heads.width, None, [*q.stride()[:-1], *pools[0][0].stride()[:-1]])
    (tiles,) = tiles_of(metadata, heads.queries // heads.keys, widths, dtype.itemsize)

    def calls(table: LaunchTable) -> list[Callable[[], Any]]:
        scale = heads.width**-0.5
        return [partial(paged_attention, q, *pool, metadata, scale, table=table) for pool in pools]

    name = shape_of(tiles.block_m, tiles.is_split, widths, dtype.itemsize)
    yield TuningCase("paged_attention", name, default_settings(tiles.is_split, widths, dtype.itemsize), calls)

"""The op `linear_quantized` for GPUs: codes stay packed, and are decoded in registers where rows are few."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.quantized import QuantizedMatrix, has_integer_values
from quire_kernels.quantized_rows import QuantizedRows
from quire_kernels.triton_gpu.device import arrivals
from quire_kernels.triton_gpu.quantized.inputs import prepared
from quire_kernels.triton_gpu.quantized.kernels import dequantize, multiply_row
from quire_kernels.triton_gpu.quantized.matrix import FLOAT4, FLOAT8, INTEGER, WORD_BITS, DeviceMatrix
from quire_kernels.triton_gpu.quantized.tiles import multiply_tile, sum_groups
from quire_kernels.triton_gpu.tuning.launch_table import LaunchTable, device_table
from quire_kernels.triton_gpu.tuning.settings import RowSettings, TileSettings

ROW = RowSettings(outputs=4, inputs=512, warps=4)

TILE_OUTPUTS = 64
TILE_WORDS = {4: 16, 8: 32}
"""Bits of a code -> words of each output that a program reads at a time, at most: fewer where groups have fewer."""

MIN_WORDS = 16
"""The least that tensor cores multiply at a time."""

PROGRAMS = 264
"""Programs over which the splits of a matrix's words are divided: two a multiprocessor."""

DEQUANTIZED = 2048
"""Columns of a row that a program dequantizes."""

MAX_ROWS = 128
"""Rows beyond which the matrix is dequantized for the library's product, which then takes longer than that."""


def default_tiles(block: int, bits: int) -> TileSettings:
    """Settings of products with tiles of `block` rows, where none were measured."""
    return TileSettings(
        outputs=TILE_OUTPUTS,
        words=TILE_WORDS[bits],
        warps=4,
        stages=4 if block < 64 else 3,
        programs=2 * PROGRAMS if block == 16 else PROGRAMS,
    )


class TritonQuantizedLinear:
    """`ops.LinearQuantized`; the matrix is moved to the device when it is bound.

    rounds: inputs are rounded to 8 bits. table: of launches, None = that of the device.
    """

    def __init__(
        self,
        matrix: DeviceMatrix,
        bias: Tensor | None,
        dtype: torch.dtype,
        rounds: bool,
        table: LaunchTable | None = None,
    ) -> None:
        self.matrix, self.bias, self.dtype, self.rounds = matrix, bias, dtype, rounds
        self._table = device_table(matrix.words.device) if table is None else table
        self._row = self._table.find("linear_quantized", self.shape_of(1), ROW)
        self._tiles: dict[int, TileSettings] = {}  # by rows of a tile

    def shape_of(self, rows: int) -> str:
        """How the table of launches calls products with tiles of so many rows."""
        matrix = self.matrix
        outputs, inputs = matrix.shape
        group = matrix.group_words * WORD_BITS // matrix.bits if matrix.scales.shape[1] > 1 else inputs
        return f"{outputs}x{inputs} {matrix.bits} bits of kind {matrix.kind} in groups of {group}, {rows} rows"

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        outputs, inputs = self.matrix.shape
        rows = x.reshape(-1, inputs)
        rows = prepared(rows if rows.stride(-1) == 1 else rows.contiguous(), self.matrix.order, self.rounds)
        dtype = torch.float32 if float32 else x.dtype
        if len(rows) == 1:
            y = self._multiply_row(rows, dtype)
        elif len(rows) > MAX_ROWS or x.dtype == torch.float32 or not len(rows):
            y = self._by_library(rows, dtype)
        else:
            y = self._multiply_tiles(rows, dtype)
        return y.view(*x.shape[:-1], outputs)

    def _arguments(self) -> tuple[Any, ...]:
        matrix = self.matrix
        return matrix.words, matrix.scales, matrix.scales if matrix.offsets is None else matrix.offsets, matrix.table

    def _form(self) -> dict[str, Any]:
        matrix = self.matrix
        return {
            "inputs": matrix.shape[1],
            "row_words": matrix.words.shape[1],
            "groups": matrix.scales.shape[1],
            "zero": float(matrix.zero),
            "RUN": matrix.run,
            "GROUP_WORDS": matrix.group_words,
            "BITS": matrix.bits,
            "KIND": matrix.kind,
            "HAS_OFFSETS": matrix.offsets is not None,
        }

    def _multiply_row(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        outputs = self.matrix.shape[0]
        y = torch.empty(1, outputs, dtype=dtype, device=x.device)
        settings = self._row
        multiply_row[triton.cdiv(outputs, settings.outputs),](
            *(x, *self._arguments(), y if self.bias is None else self.bias, y, outputs),
            **self._form(),
            **{"OUTPUTS": settings.outputs, "WORDS": settings.inputs, "HAS_BIAS": self.bias is not None},
            num_warps=settings.warps,
        )
        return y

    def _multiply_tiles(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        matrix, rows = self.matrix, len(x)
        outputs, words = matrix.shape[0], matrix.words.shape[1]
        block = min(64, max(16, triton.next_power_of_2(rows)))
        settings = self.tiles_of(block)
        width, step = settings.outputs, settings.words
        if matrix.group_words % step and not matrix.group_words % MIN_WORDS:
            step = MIN_WORDS
        of_outputs, of_rows, steps = (triton.cdiv(*pair) for pair in ((outputs, width), (rows, block), (words, step)))
        per_split = triton.cdiv(steps, min(steps, max(1, settings.programs // (of_outputs * of_rows))))
        splits = triton.cdiv(steps, per_split)
        y = torch.empty(rows, outputs, dtype=dtype, device=x.device)
        group_sums, partial, arrived = y, y, y
        if matrix.offsets is not None and not matrix.group_words % step:
            group_sums = self._group_sums(x)
        if splits > 1:
            partial = torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device)
            arrived = arrivals(x.device, of_outputs * of_rows)
        multiply_tile[of_outputs, of_rows, splits](
            *(x, x.stride(0), *self._arguments(), y if self.bias is None else self.bias, y),
            *(group_sums, partial, arrived, rows, outputs),
            **self._form(),
            **{"split_words": per_split * step, "ROWS": block, "OUTPUTS": width, "WORDS": step},
            QUICK=self.is_quick(x.dtype, not matrix.group_words % step),
            HAS_BIAS=self.bias is not None,
            SPLIT=splits > 1,
            WIDE=x.device.type == "cpu",  # the interpreter has no bf16 dot
            num_warps=settings.warps,
            num_stages=settings.stages,
        )
        return y

    def tiles_of(self, block: int) -> TileSettings:
        """Settings of products with tiles of `block` rows."""
        if block not in self._tiles:
            default = default_tiles(block, self.matrix.bits)
            self._tiles[block] = self._table.find("linear_quantized", self.shape_of(block), default)
        return self._tiles[block]

    def is_quick(self, dtype: torch.dtype, by_group: bool) -> bool:
        """Whether weights are made of the bits of codes, and get scales in bfloat16 or none."""
        matrix = self.matrix
        has_bits = matrix.kind in (FLOAT4, FLOAT8) or (matrix.kind == INTEGER and matrix.bits == 4)
        scales = by_group or (matrix.scales.dtype == torch.bfloat16 and matrix.offsets is None)
        return dtype == torch.bfloat16 and has_bits and scales

    def _group_sums(self, x: Tensor) -> Tensor:
        rows, inputs = x.shape
        groups = self.matrix.scales.shape[1]
        group = inputs if groups == 1 else self.matrix.group_words * WORD_BITS // self.matrix.bits
        sums = torch.empty(rows, groups, dtype=torch.float32, device=x.device)
        sum_groups[rows, groups](x, x.stride(0), sums, groups, inputs, group, GROUP=triton.next_power_of_2(group))
        return sums

    def _by_library(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self._dequantized(x.dtype), bias).to(dtype)

    def _dequantized(self, dtype: torch.dtype, ids: Tensor | None = None, order: Tensor | None = None) -> Tensor:
        count, inputs = self.matrix.shape if ids is None else (len(ids), self.matrix.shape[1])
        out = torch.empty(count, inputs, dtype=dtype, device=self.matrix.words.device)
        if count:
            runs = triton.cdiv(inputs, self.matrix.run)
            block = min(triton.next_power_of_2(runs), DEQUANTIZED // self.matrix.run)
            dequantize[count, triton.cdiv(runs, block)](
                *(*self._arguments(), out if ids is None else ids, out if order is None else order, out),
                **self._form(),
                **{"RUNS": block, "HAS_IDS": ids is not None, "HAS_ORDER": order is not None},
            )
        return out

    @property
    def element_bytes(self) -> float:
        return self.matrix.element_bytes

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight [outputs, inputs], or some rows of it (ids, int64)."""
        ids = None if rows is None else rows.to(self.matrix.words.device)
        return self._dequantized(self.dtype, ids, self.matrix.order)


@capturable
def linear_quantized(
    matrix: QuantizedMatrix | QuantizedRows,
    bias: Tensor | None,
    dtype: torch.dtype,
    gated: bool = False,
    activation_bits: int = 8,
) -> TritonQuantizedLinear:
    """Codes of up to 4 bits take 4 on the device, others 8."""
    whole = matrix.whole() if isinstance(matrix, QuantizedRows) else matrix
    problem = whole.problem_of_form()
    if activation_bits not in (8, 16):
        problem = f"activations have 8 or 16 bits, not {activation_bits}"
    if problem is not None:
        raise ValueError(f"linear_quantized: {problem}")
    device = _device_of(whole, bias)
    rounds = activation_bits == 8 and has_integer_values(whole)
    bias = None if bias is None else bias.detach().to(device).contiguous()
    return TritonQuantizedLinear(DeviceMatrix.from_matrix(whole, device), bias, dtype, rounds)


def _device_of(matrix: QuantizedMatrix, bias: Tensor | None) -> torch.device:
    """That of its tensors, if one is on a device already."""
    tensors = [each for each in (bias, matrix.codes, matrix.scales) if each is not None]
    found = next((each.device for each in tensors if each.device.type != "cpu"), None)
    return found or torch.device("cuda" if torch.cuda.is_available() else "cpu")

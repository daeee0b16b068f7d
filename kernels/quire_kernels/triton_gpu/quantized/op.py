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
from quire_kernels.triton_gpu.quantized.kernels import dequantize, multiply_row, multiply_tile
from quire_kernels.triton_gpu.quantized.matrix import DeviceMatrix

ROW_OUTPUTS, ROW_WORDS = 4, 512
"""Of a program that multiplies one row: outputs, and words of each that it reads at a time."""

TILE_ROWS, TILE_OUTPUTS, TILE_WORDS = 64, 64, 32
PROGRAMS = 264
"""Programs over which the splits of a matrix's words are divided: two a multiprocessor."""

MOST_ROWS = 128
"""Rows beyond which the matrix is dequantized for the library's product, which then takes longer than that."""


class TritonQuantizedLinear:
    """`ops.LinearQuantized`; the matrix is moved to the device when it is bound."""

    def __init__(self, matrix: DeviceMatrix, bias: Tensor | None, dtype: torch.dtype, rounds: bool) -> None:
        self.matrix, self.bias, self._dtype, self._rounds = matrix, bias, dtype, rounds

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        outputs, inputs = self.matrix.shape
        rows = x.reshape(-1, inputs)
        rows = prepared(rows if rows.stride(-1) == 1 else rows.contiguous(), self.matrix.order, self._rounds)
        dtype = torch.float32 if float32 else x.dtype
        if len(rows) == 1:
            y = self._multiply_row(rows, dtype)
        elif len(rows) > MOST_ROWS or x.dtype == torch.float32 or not len(rows):
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
        multiply_row[triton.cdiv(outputs, ROW_OUTPUTS),](
            *(x, *self._arguments(), y if self.bias is None else self.bias, y, outputs),
            **self._form(),
            **{"OUTPUTS": ROW_OUTPUTS, "WORDS": ROW_WORDS, "HAS_BIAS": self.bias is not None},
            num_warps=4,
        )
        return y

    def _multiply_tiles(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        rows, outputs, words = len(x), self.matrix.shape[0], self.matrix.words.shape[1]
        block = TILE_ROWS
        of_outputs, of_rows, steps = (
            triton.cdiv(*pair) for pair in ((outputs, TILE_OUTPUTS), (rows, block), (words, TILE_WORDS))
        )
        per_split = triton.cdiv(steps, min(steps, triton.cdiv(PROGRAMS, of_outputs)))
        splits = triton.cdiv(steps, per_split)
        y = torch.empty(rows, outputs, dtype=dtype, device=x.device)
        partial, arrived = y, y
        if splits > 1:
            partial = torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device)
            arrived = arrivals(x.device, of_outputs * of_rows)
        multiply_tile[of_outputs, of_rows, splits](
            *(x, x.stride(0), *self._arguments(), y if self.bias is None else self.bias, y, partial, arrived),
            *(rows, outputs),
            **self._form(),
            **{"split_words": per_split * TILE_WORDS, "ROWS": block, "OUTPUTS": TILE_OUTPUTS, "WORDS": TILE_WORDS},
            HAS_BIAS=self.bias is not None,
            SPLIT=splits > 1,
            WIDE=x.device.type == "cpu",  # the interpreter has no bf16 dot
            num_warps=4,
            num_stages=2,
        )
        return y

    def _by_library(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self._dequantized(x.dtype), bias).to(dtype)

    def _dequantized(self, dtype: torch.dtype, ids: Tensor | None = None, order: Tensor | None = None) -> Tensor:
        count, inputs = self.matrix.shape if ids is None else (len(ids), self.matrix.shape[1])
        out = torch.empty(count, inputs, dtype=dtype, device=self.matrix.words.device)
        if count:
            dequantize[count, triton.cdiv(self.matrix.words.shape[1], ROW_WORDS)](
                *(*self._arguments(), out if ids is None else ids, out if order is None else order, out),
                **self._form(),
                **{"WORDS": ROW_WORDS, "HAS_IDS": ids is not None, "HAS_ORDER": order is not None},
            )
        return out

    @property
    def element_bytes(self) -> float:
        return self.matrix.element_bytes

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight [outputs, inputs], or some rows of it (ids, int64)."""
        ids = None if rows is None else rows.to(self.matrix.words.device)
        return self._dequantized(self._dtype, ids, self.matrix.order)


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
    return TritonQuantizedLinear(DeviceMatrix.of(whole, device), bias, dtype, rounds)


def _device_of(matrix: QuantizedMatrix, bias: Tensor | None) -> torch.device:
    """That of its tensors, if one is on a device already."""
    tensors = [each for each in (bias, matrix.codes, matrix.scales) if each is not None]
    found = next((each.device for each in tensors if each.device.type != "cpu"), None)
    return found or torch.device("cuda" if torch.cuda.is_available() else "cpu")

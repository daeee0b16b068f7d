"""The op `linear_int8` for GPUs: products of int8 with exact sums in int32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels import int8
from quire_kernels.candidates.capture import capturable
from quire_kernels.triton_gpu.attention.results import has_arrived_last
from quire_kernels.triton_gpu.device import arrivals
from quire_kernels.triton_gpu.quantized.inputs import quantized_rows

ROW_OUTPUTS, ROW_INPUTS = 4, 2048
"""Of a program that multiplies one row: outputs, and inputs that it reads at a time."""

TILE_OUTPUTS, TILE_INPUTS = 64, 128
PROGRAMS = 264
"""Programs over which the splits of the inputs are divided: two a multiprocessor."""


@triton.jit
def multiply_row_int8(
    x,
    x_scale,
    weight,
    scales,
    bias,
    y,
    outputs,
    inputs: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """y[n] = Σ x[m] weight[n, m] · x_scale · scales[n] + bias[n] for OUTPUTS values of n."""
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = n < outputs
    sums = tl.full((OUTPUTS, INPUTS), 0, tl.int32)
    for first in range(0, inputs, INPUTS):
        m = first + tl.arange(0, INPUTS)
        some = tl.load(
            weight + n[:, None].to(tl.int64) * inputs + m[None],
            mask=is_output[:, None] & (m < inputs)[None],
            other=0,
            eviction_policy="evict_first",
        )
        sums += some.to(tl.int32) * tl.load(x + m, mask=m < inputs, other=0).to(tl.int32)[None]
    found = tl.sum(sums, 1).to(tl.float32) * tl.load(x_scale) * tl.load(scales + n, mask=is_output, other=0.0)
    if HAS_BIAS:
        found += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)
    tl.store(y + n, found.to(y.dtype.element_ty), mask=is_output)


@triton.jit
def multiply_tile_int8(
    x,
    x_scales,
    weight,
    scales,
    bias,
    y,
    partial,
    arrived,
    rows,
    outputs,
    split_inputs,
    inputs: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """y[t, n] = Σ x[t, m] weight[n, m] · x_scales[t] · scales[n] + bias[n] for ROWS values of t and OUTPUTS of n.

    Grid: blocks of outputs, blocks of rows, splits of the inputs. With SPLIT the splits' sums go to `partial` int32
    [splits, rows, outputs], and the last program of a tile adds them; arrived: 0 before and after.
    """
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    t = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_output, is_row = n < outputs, t < rows
    begin = tl.program_id(2) * split_inputs
    sums = tl.full((OUTPUTS, ROWS), 0, tl.int32)
    for first in range(begin, tl.minimum(begin + split_inputs, inputs), INPUTS):
        m = first + tl.arange(0, INPUTS)
        inside = m < inputs
        some = tl.load(
            weight + n[:, None].to(tl.int64) * inputs + m[None], mask=is_output[:, None] & inside[None], other=0
        )
        some_x = tl.load(x + t[:, None].to(tl.int64) * inputs + m[None], mask=is_row[:, None] & inside[None], other=0)
        sums = tl.dot(some, tl.trans(some_x), sums, out_dtype=tl.int32)
    to = t[None].to(tl.int64) * outputs + n[:, None]
    mask = is_output[:, None] & is_row[None]
    is_last = True
    if SPLIT:
        tl.store(partial + tl.program_id(2) * rows.to(tl.int64) * outputs + to, sums, mask=mask)
        tl.debug_barrier()  # all threads have stored their part before one of them says so
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        is_last = has_arrived_last(arrived + tile, tl.num_programs(2))
        if is_last:
            sums = tl.full((OUTPUTS, ROWS), 0, tl.int32)
            for split in range(0, tl.num_programs(2)):
                place = partial + split * rows.to(tl.int64) * outputs + to
                sums += tl.load(place, mask=mask, other=0, cache_modifier=".cg")
    if is_last:
        found = sums.to(tl.float32) * tl.load(x_scales + t, mask=is_row, other=0.0)[None]
        found *= tl.load(scales + n, mask=is_output, other=0.0)[:, None]
        if HAS_BIAS:
            found += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[:, None]
        tl.store(y + to, found.to(y.dtype.element_ty), mask=mask)


class TritonInt8Linear:
    """`ops.LinearInt8`: the weight as int8 with a scale per output."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._dtype, self._bias = weight.dtype, bias
        self._quantized, self._scales = int8.quantize(weight.detach())

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        """x [..., inputs] -> [..., outputs]."""
        outputs, inputs = self._quantized.shape
        rows = x.reshape(-1, inputs)
        y = torch.empty(len(rows), outputs, dtype=torch.float32 if float32 else x.dtype, device=x.device)
        if len(rows):
            quantized, scales = quantized_rows(rows if rows.stride(-1) == 1 else rows.contiguous())
            bias = y if self._bias is None else self._bias
            given = quantized, scales, self._quantized, self._scales, bias, y
            if len(rows) == 1:
                multiply_row_int8[triton.cdiv(outputs, ROW_OUTPUTS),](
                    *(*given, outputs, inputs, ROW_OUTPUTS, ROW_INPUTS), HAS_BIAS=self._bias is not None, num_warps=4
                )
            else:
                self._multiply_tiles(given, y)
        return y.view(*x.shape[:-1], outputs)

    def _multiply_tiles(self, given: tuple[Tensor, ...], y: Tensor) -> None:
        (rows, outputs), inputs = y.shape, self._quantized.shape[1]
        block = min(64, max(16, triton.next_power_of_2(rows)))
        of_outputs, of_rows, steps = (
            triton.cdiv(*pair) for pair in ((outputs, TILE_OUTPUTS), (rows, block), (inputs, TILE_INPUTS))
        )
        per_split = triton.cdiv(steps, min(steps, triton.cdiv(PROGRAMS, of_outputs * of_rows)))
        splits = triton.cdiv(steps, per_split)  # integers have the same sum in any order
        partial, arrived = y, y
        if splits > 1:
            partial = torch.empty(splits, rows, outputs, dtype=torch.int32, device=y.device)
            arrived = arrivals(y.device, of_outputs * of_rows)
        multiply_tile_int8[of_outputs, of_rows, splits](
            *(*given, partial, arrived, rows, outputs, per_split * TILE_INPUTS, inputs),
            **{"ROWS": block, "OUTPUTS": TILE_OUTPUTS, "INPUTS": TILE_INPUTS, "HAS_BIAS": self._bias is not None},
            SPLIT=splits > 1,
            num_warps=4,
            num_stages=4,
        )

    def unpacked(self, rows: Tensor | None = None) -> Tensor:
        """The dequantized weight [outputs, inputs], or some rows of it (ids, int64)."""
        chosen = slice(None) if rows is None else rows
        return int8.dequantize(self._quantized[chosen], self._scales[chosen], self._dtype)


@capturable
def linear_int8(weight: Tensor, bias: Tensor | None, gated: bool = False) -> TritonInt8Linear:
    return TritonInt8Linear(weight, bias)

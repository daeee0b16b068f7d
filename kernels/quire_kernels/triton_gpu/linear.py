"""The op `linear` for GPUs. One row reads every weight for one product, so that memory decides its time: one kernel
streams a small matrix past it. Larger matrices and more rows are cuBLAS's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.triton_gpu.device import await_previous_launch, overlapping
from quire_kernels.triton_gpu.tuning.launch_table import LaunchTable, device_table, matrix_shape
from quire_kernels.triton_gpu.tuning.settings import RowSettings

LARGEST = 32 << 20
"""Elements of a matrix up to which the kernel was faster than cuBLAS, on an H200."""

DEFAULT = RowSettings(outputs=2, inputs=1024, warps=4)


@triton.jit
def _weights(weight, n, is_output, first, inputs: tl.constexpr, INPUTS: tl.constexpr):
    """Rows n of the matrix, INPUTS columns from `first` on."""
    m = first + tl.arange(0, INPUTS)
    return tl.load(
        weight + n[:, None].to(tl.int64) * inputs + m[None],
        mask=is_output[:, None] & (m < inputs)[None],
        other=0.0,
        eviction_policy="evict_first",
    )


@triton.jit
def _inputs(x, first, inputs: tl.constexpr, INPUTS: tl.constexpr):
    m = first + tl.arange(0, INPUTS)
    return tl.load(x + m, mask=m < inputs, other=0.0).to(tl.float32)


@triton.jit
def multiply_row(
    x,
    weight,
    bias,
    y,
    outputs,
    inputs: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    """y[n] = Σ x[m] weight[n, m] + bias[n] for OUTPUTS values of n, summed in float32.

    The first weights are read while the launch ahead still computes x.
    """
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = n < outputs
    some_weight = _weights(weight, n, is_output, 0, inputs, INPUTS)
    await_previous_launch(OVERLAPS)
    sums = _inputs(x, 0, inputs, INPUTS)[None] * some_weight.to(tl.float32)
    for first in range(INPUTS, inputs, INPUTS):
        some_weight = _weights(weight, n, is_output, first, inputs, INPUTS)
        sums += _inputs(x, first, inputs, INPUTS)[None] * some_weight.to(tl.float32)
    found = tl.sum(sums, 1)
    if HAS_BIAS:
        found += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)
    tl.store(y + n, found.to(y.dtype.element_ty), mask=is_output)


@dataclass(frozen=True, eq=False)
class TritonLinear:
    """A bound matrix: `quire_kernels.ops.BoundLinear`."""

    weight: Tensor
    bias: Tensor | None
    settings: RowSettings = DEFAULT

    def __call__(self, x: Tensor, float32: bool = False) -> Tensor:
        inputs, outputs = x.shape[-1], len(self.weight)
        dtype = torch.float32 if float32 else x.dtype
        if x.numel() != inputs or x.dtype == torch.float32 or self.weight.numel() > LARGEST:
            return self._by_library(x, dtype)
        y = torch.empty(*x.shape[:-1], outputs, dtype=dtype, device=x.device)
        bias = self.weight if self.bias is None else self.bias
        settings = self.settings
        multiply_row[triton.cdiv(outputs, settings.outputs),](
            *(x.contiguous(), self.weight, bias, y, outputs, inputs, settings.outputs, settings.inputs),
            HAS_BIAS=self.bias is not None,
            num_warps=settings.warps,
            **overlapping(x.device),
        )
        return y

    def _by_library(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        if dtype == x.dtype or self.bias is not None or not x.is_cuda:
            return F.linear(x, self.weight, self.bias).to(dtype)
        flat = torch.mm(x.reshape(-1, x.shape[-1]), self.weight.t(), out_dtype=dtype)  # not rounded to x.dtype first
        return flat.view(*x.shape[:-1], len(self.weight))


@capturable
def linear(weight: Tensor, bias: Tensor | None, gated: bool = False, table: LaunchTable | None = None) -> TritonLinear:
    """table: of launches, None = that of the device."""
    table = device_table(weight.device) if table is None else table
    return TritonLinear(weight.contiguous(), bias, table.find("linear", matrix_shape(weight), DEFAULT))

"""The op `gated_act` for GPUs, one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.triton_gpu.attention.tile import tanh

BLOCK = 1024


@triton.jit
def _activated(x, ACT: tl.constexpr):
    """The activation of `quire_kernels.ops.ACTS` by that name, in float32."""
    y = x
    if ACT == "silu":
        y = x * tl.sigmoid(x)
    elif ACT == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        y = 0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif ACT == "relu":
        y = tl.maximum(x, 0.0)
    elif ACT == "relu2":
        y = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    elif ACT == "quick_gelu":
        y = x * tl.sigmoid(1.702 * x)
    elif ACT == "sigmoid":
        y = tl.sigmoid(x)
    elif ACT == "tanh":
        y = tanh(x)
    return y


@triton.jit
def _gated_act(gate_up, stride, out, width, ACT: tl.constexpr, BLOCK: tl.constexpr):
    """Grid: rows, blocks of outputs. gate_up [rows, 2 · width], out [rows, width]."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * stride + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + width + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + column, (_activated(gate, ACT) * up).to(out.dtype.element_ty), mask=inside)


@capturable
def gated_act(gate_up: Tensor, act: str) -> Tensor:
    width = gate_up.shape[-1] // 2
    out = torch.empty(*gate_up.shape[:-1], width, dtype=gate_up.dtype, device=gate_up.device)
    if not out.numel():
        return out
    rows = gate_up if gate_up.dim() == 2 and gate_up.stride(-1) == 1 else gate_up.reshape(-1, 2 * width).contiguous()
    block = min(BLOCK, triton.next_power_of_2(width))
    _gated_act[len(rows), triton.cdiv(width, block)](rows, rows.stride(0), out, width, ACT=act, BLOCK=block)
    return out

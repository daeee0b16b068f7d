"""The op `gated_rms_norm` for GPUs: a program normalizes one part of a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.triton_gpu.rows.acts import activated


@triton.jit
def normalize_gated(
    x,
    x_token,
    x_part,
    gate,
    gate_token,
    gate_part,
    weight,
    weight_part,
    out,
    width,
    eps,
    BLOCK: tl.constexpr,
    ACT: tl.constexpr,
    GATE_FIRST: tl.constexpr,
):
    """Grid: tokens, parts. weight_part: 0 if all parts share the weight."""
    token, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = tl.arange(0, BLOCK)
    inside = at < width
    h = tl.load(x + token * x_token + part * x_part + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(gate + token * gate_token + part * gate_part + at, mask=inside, other=0.0).to(tl.float32)
    factor = activated(factor, ACT)
    if GATE_FIRST:
        h *= factor
    h = tl.where(inside, h, 0.0)
    h *= tl.rsqrt(tl.sum(h * h, 0) / width + eps)
    h *= tl.load(weight + part * weight_part + at, mask=inside, other=0.0)
    if not GATE_FIRST:
        h *= factor
    to = out + (token * tl.num_programs(1) + part) * width + at
    tl.store(to, h.to(out.dtype.element_ty), mask=inside)


@capturable
def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, act: str = "silu", gate_first: bool = False
) -> Tensor:
    tokens, parts, width = x.shape
    x, gate = (each if each.stride(-1) == 1 else each.contiguous() for each in (x, gate))
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.numel():
        block = triton.next_power_of_2(width)
        normalize_gated[tokens, parts](
            *(x, x.stride(0), x.stride(1), gate, gate.stride(0), gate.stride(1)),
            *(weight, weight.stride(0) if weight.dim() == 2 else 0, out, width, eps, block),
            **{"ACT": act, "GATE_FIRST": gate_first},
            num_warps=1 if block <= 256 else 4 if block <= 2048 else 8,
        )
    return out

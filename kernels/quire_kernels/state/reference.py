"""The ops of `quire_kernels.state.ops`, one token after another. A part of `quire_kernels.reference`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from quire_kernels.ops import AttentionMetadata


def tokens_of(slots: Tensor, rows: AttentionMetadata) -> Iterator[tuple[int, int]]:
    """(token, slot) for all tokens of a step."""
    starts = rows.query_starts.tolist()
    for slot, first, last in zip(slots.tolist(), starts, starts[1:], strict=False):
        for token in range(first, last):
            yield token, slot


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
    act: str = "identity",
) -> Tensor:
    from quire_kernels.reference import act as apply

    out = torch.empty_like(x)
    for t, slot in tokens_of(slots, rows):
        window = torch.cat((state[slot], x[t][None]))
        total = (window.float() * weight).sum(0) + (0 if bias is None else bias)
        out[t], state[slot] = apply(total, act).to(x.dtype), window[1:]
    return out


def gated_delta(
    qkv: Tensor,
    decay: Tensor,
    weight: Tensor,
    rate: Tensor,
    bias: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
    dims: tuple[int, int],
    factor: float = 1.0,
) -> Tensor:
    heads, (dim, value_dim) = len(rate), dims
    out = qkv.new_empty(len(qkv), heads, value_dim)
    steps = F.softplus(decay.float() + bias).unflatten(-1, (heads, -1))
    decays = (rate[:, None] * steps).exp()[..., None]  # [T, H, D or 1, 1]
    weights = factor * weight.float().sigmoid()
    q, k, v = split_heads(qkv, heads, dim, value_dim)
    for t, slot in tokens_of(slots, rows):
        s = state[slot] * decays[t]
        delta = weights[t][:, None] * (v[t] - torch.einsum("hdv,hd->hv", s, k[t]))
        state[slot] = s + k[t][:, :, None] * delta[:, None]
        out[t] = torch.einsum("hdv,hd->hv", state[slot], q[t]).to(out.dtype)
    return out


def split_heads(qkv: Tensor, heads: int, dim: int, value_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Normalized queries and keys [T, H, D], and values [T, H, V], in float32."""
    keys = (qkv.shape[-1] - heads * value_dim) // 2
    q, k, v = qkv.float().split([keys, keys, heads * value_dim], -1)
    q, k = (t.unflatten(-1, (-1, dim)) for t in (q, k))
    q, k = (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + 1e-6) for t in (q, k))
    q, k = (t.repeat_interleave(heads * dim // keys, 1) for t in (q * dim**-0.5, k))
    return q, k, v.unflatten(-1, (heads, value_dim))


def ssd_scan(
    xbc: Tensor,
    step: Tensor,
    rate: Tensor,
    bias: Tensor,
    skip: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
    dims: tuple[int, int],
    limits: tuple[float, float] = (0.0, float("inf")),
) -> Tensor:
    x, b, c = split_groups(xbc, len(rate), *dims)
    out = xbc.new_empty(x.shape)
    dt = F.softplus(step.float() + bias).clamp(*limits)
    for t, slot in tokens_of(slots, rows):
        decayed = (rate * dt[t]).exp()[:, None, None] * state[slot]
        state[slot] = decayed + b[t][:, :, None] * (dt[t][:, None] * x[t])[:, None]
        out[t] = (torch.einsum("hnp,hn->hp", state[slot], c[t]) + skip[:, None] * x[t]).to(out.dtype)
    return out


def split_groups(xbc: Tensor, heads: int, numbers: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """x [T, H, P], and B and C of each head [T, H, N], in float32."""
    keys = (xbc.shape[-1] - heads * width) // 2
    x, b, c = xbc.float().split([heads * width, keys, keys], -1)
    b, c = (t.unflatten(-1, (-1, numbers)).repeat_interleave(heads * numbers // keys, 1) for t in (b, c))
    return x.unflatten(-1, (heads, width)), b, c


def selective_scan(
    x: Tensor,
    step: Tensor,
    b: Tensor,
    c: Tensor,
    rate: Tensor,
    skip: Tensor,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
) -> Tensor:
    out, dt = torch.empty_like(x), F.softplus(step.float())
    for t, slot in tokens_of(slots, rows):
        state[slot] = (rate * dt[t]).exp() * state[slot] + dt[t] * x[t].float() * b[t].float()[:, None]
        out[t] = ((state[slot] * c[t].float()[:, None]).sum(0) + skip * x[t].float()).to(x.dtype)
    return out


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, act: str = "silu", gate_first: bool = False
) -> Tensor:
    from quire_kernels.reference import act as apply

    factor = apply(gate.float(), act)
    h = x.float() * factor if gate_first else x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps) * weight
    return (h if gate_first else h * factor).to(x.dtype)

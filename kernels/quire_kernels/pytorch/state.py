"""The ops that keep states in plain torch: rows of one token together, longer rows in chunks of products.

With G the sums of the logarithms of the decays since a chunk's begin, token i of a chunk reads what token j ≤ i has
added by the factor exp(G[i] - G[j]), which is at most 1.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from quire_kernels import reference
from quire_kernels.ops import AttentionMetadata
from quire_kernels.state import reference as state_reference
from quire_kernels.state.reference import gated_rms_norm, split_groups, split_heads

__all__ = ["causal_conv", "gated_delta", "gated_rms_norm", "selective_scan", "ssd_scan"]

CHUNK, CHANNEL_CHUNK = 64, 16
"""Tokens of a chunk; of one whose decays are by channel, for which a chunk takes CHANNEL_CHUNK² · D numbers."""

Step = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def _by_rows(slots: Tensor, rows: AttentionMetadata, state: Tensor, out: Tensor, chunk: int, step: Step) -> Tensor:
    """Advance all rows. step(tokens, states): token indices [R, n] and states [R, …] -> (results [R, n, …], states)."""
    lens = torch.from_numpy(rows.lens_host).long()
    starts = rows.query_starts[:-1].long()
    singles = (lens == 1).nonzero()[:, 0].to(out.device, non_blocking=True)
    if len(singles):
        at, where = starts[singles], slots[singles]
        result, states = step(at[:, None], state[where])
        out[at], state[where] = result[:, 0].to(out.dtype), states
    for row in (lens > 1).nonzero()[:, 0].tolist():
        at, where = torch.arange(int(lens[row]), device=out.device) + starts[row], slots[row : row + 1]
        for tokens in at.split(chunk):
            result, state[where] = step(tokens[None], state[where])
            out[tokens] = result[0].to(out.dtype)
    return out


def causal_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    slots: Tensor,
    rows: AttentionMetadata,
    act: str = "identity",
) -> Tensor:
    taps = len(weight)

    def step(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat((states, x[tokens]), 1)
        total = F.conv1d(inputs.float().transpose(1, 2), weight.T[:, None].contiguous(), bias, groups=x.shape[-1])
        return reference.act(total.transpose(1, 2), act), inputs[:, 1 - taps :]

    return _by_rows(slots, rows, state, torch.empty_like(x), max(1, len(x)), step)


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
    logs = rate[:, None] * F.softplus(decay.float() + bias).unflatten(-1, (heads, -1))  # [T, H, D or 1]
    weights = factor * weight.float().sigmoid()
    q, k, v = split_heads(qkv, heads, dim, value_dim)

    def step(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        # [R, H, n, …]
        queries, keys, values, log, scale = (t[tokens].transpose(1, 2) for t in (q, k, v, logs, weights[..., None]))
        return _delta_chunk(queries, keys, values, log.cumsum(-2), scale, states)

    out = qkv.new_empty(len(qkv), heads, value_dim)
    return _by_rows(slots, rows, state, out, CHUNK if logs.shape[-1] == 1 else CHANNEL_CHUNK, step)


def _delta_chunk(q: Tensor, k: Tensor, v: Tensor, logs: Tensor, scale: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """One chunk; logs: sums of the logarithms of decays [R, H, n, D or 1].

    Each token's delta solves a triangular system over those before it (the UT transform of arXiv 2406.06484).
    """
    begun = logs.exp()
    seen = (k * begun) @ state
    system = torch.eye(k.shape[-2], device=k.device) + (scale * _decayed_products(k, k, logs)).tril(-1)
    deltas = torch.linalg.solve_triangular(system, scale * (v - seen), upper=False, unitriangular=True)
    out = (q * begun) @ state + _decayed_products(q, k, logs).tril() @ deltas
    last = logs[..., -1:, :]
    kept = last.exp().transpose(-1, -2) * state
    return out.transpose(1, 2), kept + (k * (last - logs).exp()).transpose(-1, -2) @ deltas


def _decayed_products(x: Tensor, y: Tensor, logs: Tensor) -> Tensor:
    """x[i] · y[j] times the decay from j to i, [R, H, n, n]; only j ≤ i is meaningful."""
    if logs.shape[-1] == 1:
        return (x @ y.transpose(-1, -2)) * (logs - logs.transpose(-1, -2)).clamp(max=0.0).exp()
    between = (logs[..., :, None, :] - logs[..., None, :, :]).clamp(max=0.0).exp()
    return torch.einsum("rhid,rhjd,rhijd->rhij", x, y, between)


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
    dt = F.softplus(step.float() + bias).clamp(*limits)
    logs, values = (rate * dt)[..., None], x * dt[..., None]

    def advance(tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        queries, keys, added, log = (t[tokens].transpose(1, 2) for t in (c, b, values, logs))
        sums = log.cumsum(-2)
        out = (queries * sums.exp()) @ states + _decayed_products(queries, keys, sums).tril() @ added
        last = sums[..., -1:, :]
        after = last.exp() * states + (keys * (last - sums).exp()).transpose(-1, -2) @ added
        return out.transpose(1, 2) + skip[:, None] * x[tokens], after

    return _by_rows(slots, rows, state, xbc.new_empty(x.shape), CHUNK, advance)


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
    """Rows of one token together; a longer row token by token, because every channel decays in its own way."""
    if rows.max_query > 1:
        return state_reference.selective_scan(x, step, b, c, rate, skip, state, slots, rows)
    dt, values = F.softplus(step.float()), x.float()
    states = (rate * dt[:, None]).exp() * state[slots] + (dt * values)[:, None] * b.float()[..., None]
    state[slots] = states
    return ((states * c.float()[..., None]).sum(1) + skip * values).to(x.dtype)

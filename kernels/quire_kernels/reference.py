"""Every op in plain torch, written to be read: all other implementations are tested against it.

It is slow where speed would hide the meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quire_kernels import int8, quantized, reference_low_rank, reference_moe
from quire_kernels.attention import HeadGroups, PositionBiases, Stripes
from quire_kernels.moe import ExpertMlp
from quire_kernels.ops import AttentionMetadata, BoundLinear
from quire_kernels.reference_moe import Activations, ReferenceExperts
from quire_kernels.sampling import Floats, Integers
from quire_kernels.state import reference as state_reference


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = x.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + eps)
    return (h * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = residual + x
    return rms_norm(total, weight, eps), total


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    h = x.float()
    h = (h - h.mean(-1, keepdim=True)) * torch.rsqrt(h.var(-1, correction=0, keepdim=True) + eps)
    h = h if weight is None else h * weight.float()
    return (h if bias is None else h + bias.float()).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    rotated, rest = x[..., : 2 * cos.shape[-1]].float(), x[..., 2 * cos.shape[-1] :]
    c, s = cos[:, None], sin[:, None]  # [tokens, 1, N]: shared by all heads
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        out = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
    else:
        a, b = rotated.chunk(2, -1)
        out = torch.cat((a * c - b * s, b * c + a * s), -1)
    return torch.cat((out.to(x.dtype), rest), -1)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> tuple[Tensor, Tensor]:
    return _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)


def write_kv(k: Tensor, v: Tensor | None, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    k_pool.view(-1, *k.shape[1:])[slot_mapping] = k
    if v is not None:
        v_pool.view(-1, *v.shape[1:])[slot_mapping] = v


def read_kv(k_pool: Tensor, v_pool: Tensor, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    k, v = (pool.flatten(0, 1)[slots].to(dtype) for pool in (k_pool, v_pool))
    return k, v


def rotary_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slot_mapping: Tensor,
    interleaved: bool = False,
) -> Tensor:
    q, k = rotary(q, k, cos, sin, interleaved)
    write_kv(k, v, k_pool, v_pool, slot_mapping)
    return q


def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: AttentionMetadata,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    *,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    chunk: int | None = None,
    value_dim: int | None = None,
    biases: PositionBiases | None = None,
    stripes: Stripes | None = None,
    groups: HeadGroups | None = None,
) -> Tensor:
    out = q.new_empty(*q.shape[:2], v_pool.shape[-1] if value_dim is None else value_dim)
    starts, contexts = rows.query_starts.tolist(), rows.contexts.tolist()
    for r, context in enumerate(contexts):
        first, last = starts[r], starts[r + 1]
        k, v = (_seq_of(pool, rows.pages[r], context) for pool in (k_pool, v_pool))
        v = v if value_dim is None else k[..., :value_dim]
        if groups is not None:
            shared = (torch.arange(q.shape[1], device=q.device) + groups.first) // groups.size
            k, v = k[:, shared], v[:, shared]
        positions = torch.arange(context - (last - first), context, device=q.device)[:, None]
        ends = positions[:, 0] + 1 if rows.visible_ends is None else rows.visible_ends[first:last]
        keys = torch.arange(context, device=q.device)
        hidden = keys >= ends[:, None]  # [tokens, context]
        if window is not None:
            hidden = hidden | (positions - keys >= window)
        if chunk is not None:
            hidden = hidden | (positions // chunk != keys // chunk)
        if stripes is not None:
            local = positions // stripes.block - keys // stripes.block < stripes.local
            shifts = (torch.arange(q.shape[1], device=q.device) + stripes.first)[:, None, None] * stripes.step + 1
            hidden = hidden | ~(local | ((keys // stripes.block + shifts) % stripes.stride == 0))
        bias = None if biases is None else biases.at(keys - positions)
        bias = bias if slopes is None else slopes[:, None, None] * (keys - positions)
        out[first:last] = _attend(q[first:last], k, v, hidden, scale, softcap, bias, sinks)
    return out


def row_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rows: AttentionMetadata,
    scale: float,
    window: int | None = None,
    biases: PositionBiases | None = None,
) -> Tensor:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    starts = rows.query_starts.tolist()
    for first, last in pairwise(starts):
        positions = torch.arange(last - first, device=q.device)
        ahead = positions - positions[:, None]  # [tokens, tokens]
        hidden = torch.zeros_like(ahead, dtype=torch.bool) if window is None else ahead.abs() >= window
        seen = k[first:last], v[first:last], hidden
        out[first:last] = _attend(q[first:last], *seen, scale, bias=None if biases is None else biases.at(ahead))
    return out


def _seq_of(pool: Tensor, pages: Tensor, context: int) -> Tensor:
    """The first `context` positions of one seq, [context, K, D]."""
    num_pages = -(-context // pool.shape[1])
    return pool[pages[:num_pages].long()].flatten(0, 1)[:context]


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    scale: float,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """hidden [tokens, keys] or [H, tokens, keys]; bias [H, tokens, keys], added to the scores; sinks [H]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores if bias is None else scores + bias
    scores = scores.masked_fill(hidden, float("-inf"))
    without = [] if sinks is None else [sinks.float()[:, None, None].expand(-1, len(q), 1)]
    weights = torch.cat((scores, *without), -1).softmax(-1)[..., : len(k)]
    return torch.einsum("hqk,khd->qhd", weights, v).to(q.dtype)


_ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def act(x: Tensor, act: str) -> Tensor:
    return _ACTS[act](x)


def gated_act(gate_up: Tensor, act: str) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return _ACTS[act](gate) * up


def linear(weight: Tensor, bias: Tensor | None, gated: bool = False) -> BoundLinear:
    def bound(x: Tensor, float32: bool = False) -> Tensor:
        y = F.linear(x, weight, bias)
        return y.float() if float32 else y

    return bound


def linear_heads(weight: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.einsum("thm,hnm->thn", x.float(), weight.float()).to(x.dtype)


linear_batched = linear
linear_int8 = int8.linear_int8
linear_quantized = quantized.linear_quantized
low_rank = reference_low_rank.low_rank
causal_conv = state_reference.causal_conv
gated_delta = state_reference.gated_delta
ssd_scan = state_reference.ssd_scan
selective_scan = state_reference.selective_scan
gated_rms_norm = state_reference.gated_rms_norm
route = reference_moe.route


def embedding(ids: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
    return table[ids] * scale


def moe(
    up: Tensor | Sequence[BoundLinear],
    down: Tensor | Sequence[BoundLinear],
    mlp: ExpertMlp,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> ReferenceExperts:
    return ReferenceExperts(up, down, mlp, up_bias, down_bias, Activations(gated_act, act))


def scale_logits(x: Tensor, scale: float = 1.0, softcap: float | None = None) -> Tensor:
    y = x.float() * scale
    return y if softcap is None else softcap * torch.tanh(y / softcap)


def mask_logits(logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    ids = torch.arange(logits.shape[1], device=logits.device)
    allowed = masks[:, ids // 32] >> ids % 32 & 1
    masked = logits.clone()
    masked[rows] = logits[rows].masked_fill(allowed == 0, -torch.inf)
    return masked


def argmax(logits: Tensor) -> Tensor:
    values, ids = logits.max(-1)
    return torch.where(values.isfinite(), ids, -1)


def sample(
    logits: Tensor, temperature: Floats, uniform: Floats, top_k: Integers, top_p: Floats, min_p: Floats
) -> Tensor:
    chosen = argmax(logits)
    for r in (chosen >= 0).nonzero()[:, 0].tolist():
        if temperature[r]:
            divisor = max(float(temperature[r]), torch.finfo(torch.float32).tiny)  # smallest divisor of float32
            weights = torch.softmax((logits[r] - logits[r].max()) / divisor, -1).mul(2.0**50).floor()
            threshold = _min_weight(weights, int(top_k[r]), float(top_p[r]), float(min_p[r]))
            cumulative = torch.where(weights >= threshold, weights, 0.0).double().cumsum(-1)
            chosen[r] = (cumulative <= (cumulative[-1] * float(uniform[r])).floor().clamp(max=cumulative[-1] - 1)).sum()
    return chosen


def _min_weight(weights: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    ordered = weights.sort(descending=True).values
    threshold = (ordered[0].double() * min_p).float()
    if 0 < top_k < len(weights):
        kth = ordered[top_k - 1]
        threshold, ordered = torch.maximum(threshold, kth), ordered[ordered >= kth]
    if top_p < 1:
        cumulative = ordered.double().cumsum(-1)
        threshold = torch.maximum(threshold, ordered[cumulative >= cumulative[-1] * top_p][0])
    return threshold


def logprobs(logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    all_logprobs = torch.log_softmax(logits.double(), -1).float()
    rank = (logits > logits.gather(-1, tokens[:, None])).sum(-1) + 1
    ids = logits.sort(stable=True, dim=-1, descending=True).indices[:, :top]
    return all_logprobs.gather(-1, tokens[:, None])[:, 0], rank, ids, all_logprobs.gather(-1, ids)


def fused_blocks(blocks: Sequence[Callable[[Any, Any], Any]], width: int) -> Callable[[Tensor, Any], Tensor]:
    def run(x: Tensor, fwd: Any) -> Tensor:
        for block in blocks:
            x = block(x, fwd)
        return x

    return run

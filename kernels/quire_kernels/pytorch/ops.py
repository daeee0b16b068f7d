"""Plain-torch implementations that make fewer and larger calls than the reference; they run on every device.

They use only what torch offers on all devices. Each is tested against `reference`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from quire_kernels import reference
from quire_kernels.moe import ExpertMlp
from quire_kernels.ops import BoundLinear
from quire_kernels.pytorch.attention import paged_attention
from quire_kernels.pytorch.low_rank import low_rank
from quire_kernels.pytorch.moe import SortedExperts
from quire_kernels.pytorch.row_attention import row_attention
from quire_kernels.pytorch.sampling import logprobs, mask_logits, sample
from quire_kernels.pytorch.state import causal_conv, gated_delta, gated_rms_norm, selective_scan, ssd_scan
from quire_kernels.reference_moe import Activations

__all__ = [
    "add_rms_norm",
    "causal_conv",
    "gated_delta",
    "gated_rms_norm",
    "selective_scan",
    "ssd_scan",
    "sample",
    "embedding",
    "gated_act",
    "layer_norm",
    "linear_heads",
    "scale_logits",
    "logprobs",
    "low_rank",
    "mask_logits",
    "moe",
    "paged_attention",
    "rms_norm",
    "rotary",
    "rotary_write_kv",
    "row_attention",
    "write_kv",
]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    h = x.float()
    scale = torch.linalg.vector_norm(h, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    normed = h * scale if h is x else h.mul_(scale)
    return normed.mul_(weight).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    residual = residual.add_(x)
    return rms_norm(residual, weight, eps), residual


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> tuple[Tensor, Tensor]:
    half, heads = cos.shape[-1], q.shape[1]
    joined = torch.cat((q, k), 1)
    turned = joined[..., : 2 * half].float()
    parts = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    a, b = turned[..., parts[0]], turned[..., parts[1]]
    c, s = cos[:, None], sin[:, None]
    out = joined[..., : 2 * half]
    # both before either is stored: in float32 `a` and `b` are the memory that is written
    first, second = torch.addcmul(a * c, b, s, value=-1), torch.addcmul(b * c, a, s)
    out[..., parts[0]], out[..., parts[1]] = first, second
    return joined[:, :heads], joined[:, heads:]


def write_kv(k: Tensor, v: Tensor | None, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    k_pool.view(-1, *k.shape[1:]).index_copy_(0, slot_mapping, k)
    if v is not None:
        v_pool.view(-1, *v.shape[1:]).index_copy_(0, slot_mapping, v)


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


def linear_heads(weight: Tensor) -> Callable[[Tensor], Tensor]:
    columns = weight.transpose(1, 2)  # [H, M, N]
    return lambda x: torch.bmm(x.transpose(0, 1), columns).transpose(0, 1)


def gated_act(gate_up: Tensor, act: str) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return reference.act(gate, act).mul_(up) if act != "identity" else gate * up


def embedding(ids: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
    found = table.index_select(0, ids)
    return found if scale == 1.0 else found.mul_(scale)


def moe(
    up: Tensor | Sequence[BoundLinear],
    down: Tensor | Sequence[BoundLinear],
    mlp: ExpertMlp,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> SortedExperts:
    return SortedExperts(up, down, mlp, up_bias, down_bias, Activations(gated_act, reference.act))


def scale_logits(x: Tensor, scale: float = 1.0, softcap: float | None = None) -> Tensor:
    y = x.float()
    if scale != 1.0:
        y = y.mul_(scale)
    return y if softcap is None else y.div_(softcap).tanh_().mul_(softcap)

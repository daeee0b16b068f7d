"""`paged_attention` by xformers.

A step of single tokens reads the pages where the kernel can (`split_k_of`); in all other steps keys and values of a
group of rows are gathered first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from quire_kernels.ops import AttentionMetadata
from quire_plugins.attention.other_calls import attention_on
from quire_plugins.attention.packed_rows import packed_rows
from quire_plugins.attention.xformers.biases import packed_bias, paged_bias

SPLIT_K_DIMS = (16, 32, 64, 128, 256, 512)
"""Head dimensions of the kernel that reads pages."""


def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: AttentionMetadata,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    **options: Any,
) -> Tensor:
    if softcap is not None or rows.visible_ends is not None:
        return attention_on(q.device)(q, k_pool, v_pool, rows, scale, window, softcap, **options)
    if window is None and (kernel := paged_kernel(q, k_pool, rows)) is not None:
        key = ("xformers", k_pool.shape[1])
        if key not in rows.step_cache:
            rows.step_cache[key] = paged_bias(rows, k_pool.shape[1])
        keys, values = (pool.flatten(0, 1) for pool in (k_pool, v_pool))
        return _attend(q, keys, values, rows.step_cache[key], scale, kernel)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for packed in packed_rows(rows, k_pool.shape[1], window):
        call = ("xformers", packed.first, packed.end, window)
        if call not in rows.step_cache:
            rows.step_cache[call] = packed_bias(packed, window, q.device)
        keys, values = packed.of(k_pool), packed.of(v_pool)
        out[packed.tokens] = _attend(q[packed.tokens], keys, values, rows.step_cache[call], scale)
    return out


def paged_kernel(q: Tensor, k_pool: Tensor, rows: AttentionMetadata) -> Any:
    """The kernel of xformers that reads the pages of a step; None if there is none."""
    from xformers.ops import fmha

    page_size = k_pool.shape[1]
    fits = rows.max_query == 1 and page_size % 16 == 0 and q.shape[-1] in SPLIT_K_DIMS
    if not fits or q.dtype not in fmha.triton_splitk.FwOp.SUPPORTED_DTYPES:
        return None
    return split_k_of(64 if page_size % 64 == 0 else 32 if page_size % 32 == 0 else 16)


@cache
def split_k_of(keys: int) -> Any:
    """The split-k kernel that reads so many keys at a time; they must not exceed a page."""
    from xformers.ops import fmha

    return type(f"SplitK{keys}", (fmha.triton_splitk.FwOp,), {"BLOCK_N": keys})


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Any, scale: float, kernel: Any = None) -> Tensor:
    """q [T, H, D]; k, v [keys, K, D] -> [T, H, D]."""
    from xformers.ops import fmha

    found: Tensor = fmha.memory_efficient_attention_forward(*grouped(q, k, v), bias, scale=scale, op=kernel)
    return found.reshape(q.shape)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """With the heads of each group as a dimension, in which keys and values are expanded: [1, …, K, H / K, D]."""
    kv_heads = k.shape[1]
    groups = q.shape[1] // kv_heads
    keys, values = (x.unsqueeze(0).unsqueeze(3).expand(-1, -1, -1, groups, -1) for x in (k, v))
    return q.reshape(1, len(q), kv_heads, groups, q.shape[-1]), keys, values

"""Pages of bytes in plain torch: keys and values with a scale for each token and head.

A pool is int8 [pages, page_size, K, D + 4]: D bytes and the four of a float32. For attention the pages that a step
reads are made the queries' data type again; everything else is as `torch_ops` has it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire_kernels import torch_attention, torch_ops
from quire_kernels.int8 import SCALE_BYTES, dequantise, quantise
from quire_kernels.ops import Rows


def write_kv(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slots: Tensor) -> None:
    """See `ops.WriteKv`."""
    for x, pool in ((k, k_pool), (v, v_pool)):
        whole, scale = quantise(x)
        pool.view(-1, *pool.shape[2:]).index_copy_(0, slots, torch.cat((whole, scale.view(torch.int8)), -1))


def rotary_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    slots: Tensor,
    interleaved: bool = False,
) -> Tensor:
    """See `ops.RotaryWriteKv`."""
    q, k = torch_ops.rotary(q, k, cos, sin, interleaved)
    write_kv(k, v, k_pool, v_pool, slots)
    return q


def paged_attention(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    rows: Rows,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """See `ops.PagedAttention`."""
    count, width = rows.pages.shape
    needed = -(-rows.contexts // k_pool.shape[1])  # pages of each row
    there = torch.arange(width, device=q.device) < needed[:, None]
    pages, places = rows.pages.masked_fill(~there, 0).unique(return_inverse=True)
    copied = replace(rows, pages=places.view(count, width).int(), memo={})
    keys, values = (read_pages(pool, pages, q.dtype) for pool in (k_pool, v_pool))
    return torch_attention.paged_attention(q, keys, values, copied, scale, window, softcap)


def read_pages(pool: Tensor, pages: Tensor, dtype: torch.dtype) -> Tensor:
    """Some pages [P] of a pool: [P, page_size, K, D]."""
    found = pool.index_select(0, pages)
    whole, scale = found.split((pool.shape[-1] - SCALE_BYTES, SCALE_BYTES), -1)
    return dequantise(whole, scale.contiguous().view(torch.float32), dtype)

"""Int8 pages in plain torch: keys and values with a scale for each token and head.

A pool is int8 [pages, page_size, K, D + 4]: D int8 elements, then the four bytes of a float32 scale. Attention
dequantizes the pages that a step reads to the queries' data type and calls `quire_kernels.pytorch.attention`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from quire_kernels.int8 import SCALE_BYTES, dequantize, quantize
from quire_kernels.ops import AttentionMetadata
from quire_kernels.pytorch import attention as torch_attention, ops as torch_ops


def write_kv(k: Tensor, v: Tensor, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    for x, pool in ((k, k_pool), (v, v_pool)):
        quantized, scale = quantize(x)
        pool.view(-1, *pool.shape[2:]).index_copy_(0, slot_mapping, torch.cat((quantized, scale.view(torch.int8)), -1))


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
    q, k = torch_ops.rotary(q, k, cos, sin, interleaved)
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
) -> Tensor:
    count, width = rows.pages.shape
    needed = -(-rows.contexts // k_pool.shape[1])  # pages of each row
    used = torch.arange(width, device=q.device) < needed[:, None]
    pages, indices = rows.pages.masked_fill(~used, 0).unique(return_inverse=True)
    copied = replace(rows, pages=indices.view(count, width).int(), step_cache={})
    keys, values = (read_pages(pool, pages, q.dtype) for pool in (k_pool, v_pool))
    return torch_attention.paged_attention(q, keys, values, copied, scale, window, softcap)


def read_pages(pool: Tensor, pages: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantize the pages with these ids [P]: [P, page_size, K, D]."""
    found = pool.index_select(0, pages)
    quantized, scale = found.split((pool.shape[-1] - SCALE_BYTES, SCALE_BYTES), -1)
    return dequantize(quantized, scale.contiguous().view(torch.float32), dtype)

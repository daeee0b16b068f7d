"""Quantized pages in plain torch: keys and values of 8 or 4 bits, with their scales beside them.

In int8 a pool is int8 [pages, page_size, K, D + 4]: D int8 elements, then the four bytes of a float32 scale. In int4 it
is uint8 [pages, page_size, K, D / 2 + D / 8]: two codes a byte, then for each block of 32 dimensions a scale and an
offset (float16). A block is rotated by the Hadamard matrix of order 32 / √32 before it is quantized, which spreads
outliers over the block (as QuaRot does with whole heads, arXiv 2404.00456); the matrix is its own inverse.

Attention dequantizes the pages that a step reads to the queries' data type and calls `quire_kernels.pytorch.attention`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quire_kernels.int8 import SCALE_BYTES, dequantize, quantize
from quire_kernels.ops import AttentionMetadata
from quire_kernels.pytorch import attention as torch_attention, ops as torch_ops

STORAGE = {"int8": torch.int8, "int4": torch.uint8}
"""Data type of the pools by the name of the KV cache's data type, where keys and values are quantized."""

BITS = {torch.int8: 8, torch.uint8: 4}
"""Bits of an element by the data type of a pool."""

BLOCK = 32
"""Neighboring dimensions that share a scale and an offset in int4."""

BLOCK_BYTES = BLOCK // 2 + 4
"""Size of a block in int4: codes, scale and offset."""


def stored_elements(dim: int, dtype: torch.dtype) -> int:
    """Elements of a pool of `dtype` that a head of `dim` takes, including scales and offsets."""
    if dtype == torch.uint8:
        return dim // BLOCK * BLOCK_BYTES
    return dim + SCALE_BYTES if dtype == torch.int8 and dim else dim


def unsupported_dim(kv_dtype: str, head_dims: Iterable[int]) -> int | None:
    """The first of the head dimensions that a cache of `kv_dtype` cannot hold; None if it holds all."""
    return next((dim for dim in head_dims if dim % BLOCK), None) if kv_dtype == "int4" else None


def write_kv(k: Tensor, v: Tensor | None, k_pool: Tensor, v_pool: Tensor, slot_mapping: Tensor) -> None:
    for x, pool in ((k, k_pool), (v, v_pool)):
        if x is not None:
            pool.view(-1, *pool.shape[2:]).index_copy_(0, slot_mapping, encode(x, pool.dtype))


def read_kv(k_pool: Tensor, v_pool: Tensor, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    k, v = (decode(pool.flatten(0, 1).index_select(0, slots), dtype) for pool in (k_pool, v_pool))
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
    **options: Any,
) -> Tensor:
    count, width = rows.pages.shape
    needed = -(-rows.contexts // k_pool.shape[1])  # pages of each row
    used = torch.arange(width, device=q.device) < needed[:, None]
    pages, indices = rows.pages.masked_fill(~used, 0).unique(return_inverse=True)
    copied = replace(rows, pages=indices.view(count, width).int(), step_cache={})
    keys, values = (read_pages(pool, pages, q.dtype) for pool in (k_pool, v_pool))
    return torch_attention.paged_attention(q, keys, values, copied, scale, window, softcap, **options)


def read_pages(pool: Tensor, pages: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantize the pages with these ids [P]: [P, page_size, K, D]."""
    return decode(pool.index_select(0, pages), dtype)


def encode(x: Tensor, stored: torch.dtype) -> Tensor:
    """x [..., D] as elements of a pool of this data type. A block or vector that is not finite has NaN as its scale."""
    if stored == torch.int8:
        quantized, scale = quantize(x)
        return torch.cat((quantized, scale.view(torch.int8)), -1)
    h = rotate(x.float().unflatten(-1, (-1, BLOCK)))
    most, least = h.amax(-1, keepdim=True), h.amin(-1, keepdim=True)
    steps = torch.cat(((most - least) / torch.full_like(most, 15.0), least), -1).half()  # not times a rounded 1/15
    steps = steps.masked_fill(~(steps.isfinite().all(-1, keepdim=True) & h.isfinite().all(-1, keepdim=True)), torch.nan)
    scale, offset = steps.float().split(1, -1)
    inverse = torch.where(scale > 0, torch.ones_like(scale) / scale, 0.0)
    codes = ((h - offset) * inverse).round().nan_to_num(0.0).clamp(0, 15).to(torch.uint8).flatten(-2)
    return torch.cat((codes[..., ::2] | codes[..., 1::2] << 4, steps.flatten(-2).view(torch.uint8)), -1)


def decode(elements: Tensor, dtype: torch.dtype) -> Tensor:
    """What `encode` made, dequantized: [..., D] in `dtype`."""
    if not elements.shape[-1]:
        return elements.to(dtype)
    if elements.dtype == torch.int8:
        quantized, scale = elements.split((elements.shape[-1] - SCALE_BYTES, SCALE_BYTES), -1)
        return dequantize(quantized, scale.contiguous().view(torch.float32), dtype)
    blocks = elements.shape[-1] // BLOCK_BYTES
    packed, steps = elements.split((blocks * BLOCK // 2, blocks * 4), -1)
    scale, offset = steps.contiguous().view(torch.float16).float().unflatten(-1, (blocks, 2)).split(1, -1)
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).unflatten(-1, (blocks, BLOCK))
    return rotate(codes * scale + offset).flatten(-2).to(dtype)


def rotate(x: Tensor) -> Tensor:
    """x [..., 32] times the Hadamard matrix / √32, by sums and differences in the order in which C++ computes them."""
    for half in (1, 2, 4, 8, 16):
        a, b = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack((a + b, a - b), -2).flatten(-3)
    return x * BLOCK**-0.5

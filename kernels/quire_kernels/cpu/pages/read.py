"""The op `read_kv` for pages in the layout of `csrc/attention/pages.hpp`, by torch's indexing.

A page is groups of 16 positions; `slots // 16` is the group and `slots % 16` the position in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from quire_kernels.quantized_pages import BITS, BLOCK, BLOCK_BYTES, rotate

GROUP = 16


def read_pages(pool: Tensor, slots: Tensor, dtype: torch.dtype, values: bool, neighbors: int) -> Tensor:
    """Keys or values at these slots: [N, K, width] in `dtype`. neighbors: elements that stand together in int8."""
    heads, width = pool.shape[2:]
    if not pool.numel():
        return torch.empty(len(slots), heads, width, dtype=dtype)
    groups = pool.view(-1, heads, GROUP * width)  # [groups, K, bytes or elements]
    group, at = slots // GROUP, slots % GROUP
    if pool.dtype not in BITS:
        return _elements(groups, group, at, 4 // pool.element_size(), values).to(dtype)
    if pool.dtype == torch.int8:
        return _int8(groups, group, at, neighbors, values).to(dtype)
    return _int4(groups, group, at, values).to(dtype)


def _elements(groups: Tensor, group: Tensor, at: Tensor, neighbors: int, values: bool) -> Tensor:
    """Keys are [width / neighbors, 16, neighbors], values [16 / neighbors, width, neighbors]."""
    width = groups.shape[2] // GROUP
    if values:
        by_position = groups.view(len(groups), groups.shape[1], GROUP // neighbors, width, neighbors)
        return by_position[group, :, at // neighbors, :, at % neighbors]
    by_unit = groups.view(len(groups), groups.shape[1], width // neighbors, GROUP, neighbors)
    return by_unit[group, :, :, at].flatten(2)


def _int8(groups: Tensor, group: Tensor, at: Tensor, neighbors: int, values: bool) -> Tensor:
    width = groups.shape[2] // GROUP - 4
    codes = _elements(groups[..., : GROUP * width].contiguous(), group, at, neighbors, values)
    scales = groups[..., GROUP * width :].contiguous().view(torch.float32)[group, :, at]
    return codes.float() * scales[..., None]


def _int4(groups: Tensor, group: Tensor, at: Tensor, values: bool) -> Tensor:
    heads, blocks = groups.shape[1], groups.shape[2] // GROUP // BLOCK_BYTES
    code_bytes = blocks * BLOCK * GROUP // 2
    packed, steps = groups[..., :code_bytes], groups[..., code_bytes:].contiguous().view(torch.float16).float()
    scale, offset = steps.view(-1, heads, 2, blocks, GROUP)[group, :, :, :, at].unbind(2)  # [N, K, blocks]
    if values:
        found = packed.view(-1, heads, GROUP, blocks, BLOCK // 2)[group, :, at]
        codes = torch.cat((found & 15, found >> 4), -1)
    else:
        found = packed.view(-1, heads, blocks, BLOCK // 2, GROUP)[group, :, :, :, at]
        codes = torch.stack((found & 15, found >> 4), -1).flatten(-2)
    return rotate(codes * scale[..., None] + offset[..., None]).flatten(-2)

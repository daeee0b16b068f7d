"""Finds the page layout of an implementation from what its `write_kv` stores, so that pools can be compared.

A layout may order the elements within a page in any way. Pages are copied and swapped as a whole, so a page must
contain the elements of its own tokens, each once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire_testing.require import require

POOLS = {"write_kv": (2, 3), "rotary_write_kv": (5, 6), "paged_attention": (1, 2), "read_kv": (0, 1)}
"""By operation, the positions of the pools of keys and values among its arguments."""

BASE = 256
"""Whole numbers below this are exact in every data type."""


@dataclass(frozen=True)
class PoolLayout:
    """elements[i] is the index in the plain pool of the element at index i, int64 [elements of the pool]."""

    elements: Tensor

    def laid_out(self, plain: Tensor) -> Tensor:
        """A plain pool in the layout of the implementation."""
        return plain.flatten()[self.elements].view(plain.shape)

    def plain(self, pool: Tensor) -> Tensor:
        """A pool of the implementation in the plain layout."""
        made = torch.empty_like(pool)
        made.view(-1)[self.elements] = pool.flatten()
        return made


def layouts_of(write_kv: Callable[..., Any], like: Tensor) -> tuple[PoolLayout, PoolLayout]:
    """The layouts of keys and of values in pools [pages, page_size, K, D] of this shape and dtype."""
    count = like.numel()
    numbers = torch.arange(count, device=like.device)
    slot_mapping = torch.arange(like.shape[0] * like.shape[1], device=like.device)
    found = [torch.zeros_like(numbers), torch.zeros_like(numbers)]
    factor = 1
    while factor < count:  # each element's number, one digit at a time
        digit = (numbers // factor % BASE).to(like.dtype).view(-1, *like.shape[2:])
        pools = torch.full_like(like, -1), torch.full_like(like, -1)
        write_kv(digit, digit, *pools, slot_mapping)
        for numbers_found, pool in zip(found, pools, strict=True):
            numbers_found.add_(pool.flatten().long(), alpha=factor)
        factor *= BASE
    for what, each in zip(("keys", "values"), found, strict=True):
        require(torch.equal(each.sort().values, numbers), f"write_kv does not store each element of the {what} once.")
        page = like[0].numel()
        require(torch.equal(each // page, numbers // page), f"write_kv stores {what} in pages of other tokens.")
    return PoolLayout(found[0]), PoolLayout(found[1])

"""Where an implementation keeps what a page holds: found out from what it stores, so that pools can be compared.

A layout may order the elements of a page as it likes. But pages are copied and swapped whole, so a page must hold what
belongs to its own tokens, each element once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire.testing.demand import demand

POOLS = {"write_kv": (2, 3), "rotary_write_kv": (5, 6), "paged_attention": (1, 2)}
"""Op → places of the pools of keys and values among its arguments."""

BASE = 256
"""Whole numbers below this are exact in every data type."""


@dataclass(frozen=True)
class PoolLayout:
    """elements[place] is the number of the plain pool's element that lies there, int64 [elements of the pool]."""

    elements: Tensor

    def laid_out(self, plain: Tensor) -> Tensor:
        """A plain pool as the implementation has it."""
        return plain.flatten()[self.elements].view(plain.shape)

    def plain(self, pool: Tensor) -> Tensor:
        """The implementation's pool as a plain one."""
        made = torch.empty_like(pool)
        made.view(-1)[self.elements] = pool.flatten()
        return made


def layouts_of(write_kv: Callable[..., Any], like: Tensor) -> tuple[PoolLayout, PoolLayout]:
    """How keys and values lie in pools [pages, page_size, K, D] of this shape and data type."""
    count = like.numel()
    numbers = torch.arange(count, device=like.device)
    slots = torch.arange(like.shape[0] * like.shape[1], device=like.device)
    found = [torch.zeros_like(numbers), torch.zeros_like(numbers)]
    factor = 1
    while factor < count:  # each element's number, one digit at a time
        digit = (numbers // factor % BASE).to(like.dtype).view(-1, *like.shape[2:])
        pools = torch.full_like(like, -1), torch.full_like(like, -1)
        write_kv(digit, digit, *pools, slots)
        for numbers_found, pool in zip(found, pools, strict=True):
            numbers_found.add_(pool.flatten().long(), alpha=factor)
        factor *= BASE
    for what, each in zip(("keys", "values"), found, strict=True):
        demand(torch.equal(each.sort().values, numbers), f"write_kv does not store each element of the {what} once.")
        page = like[0].numel()
        demand(torch.equal(each // page, numbers // page), f"write_kv stores {what} in pages of other tokens.")
    return PoolLayout(found[0]), PoolLayout(found[1])

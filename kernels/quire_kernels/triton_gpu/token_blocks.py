"""Tokens sorted by adapter, in blocks of one adapter: on the device, for captured steps of many tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.low_rank import TokenSlots


@dataclass(frozen=True)
class TokenBlocks:
    """tokens: int32 [T], those of a slot side by side. blocks: int32 [blocks, 3], the slot, where its tokens begin, and
    how many they are; 0 at the end.
    """

    tokens: Tensor
    blocks: Tensor


@triton.jit
def _sort(slots, tokens, blocks, number_of_blocks, count, COUNT: tl.constexpr, SIZE: tl.constexpr):
    """The place of one token among all. The first of each SIZE tokens of a slot adds their block.

    Tokens without an adapter (slot -1) come first. number_of_blocks: 0 before. Grid: tokens.
    """
    token, others = tl.program_id(0), tl.arange(0, COUNT)
    slot = tl.load(slots + token)
    slot_of = tl.load(slots + others, mask=others < count, other=2147483647)
    same = slot_of == slot
    before = tl.sum((same & (others < token)).to(tl.int32))
    at = tl.sum((slot_of < slot).to(tl.int32)) + before
    tl.store(tokens + at, token)
    if (slot >= 0) & (before % SIZE == 0):
        block = blocks + tl.atomic_add(number_of_blocks, 1) * 3
        tl.store(block, slot)
        tl.store(block + 1, at)
        tl.store(block + 2, tl.minimum(tl.sum(same.to(tl.int32)) - before, SIZE))


def blocks_of(slots: TokenSlots, size: int, multiple: int) -> TokenBlocks:
    """Blocks of up to `size` tokens, as many as there may be, and a multiple of `multiple`. Cached for the step."""
    found: TokenBlocks | None = slots.step_cache.get(TokenBlocks)
    if found is None:
        count = len(slots.token_slots)
        most = triton.cdiv(count, multiple) * multiple
        numbers = slots.token_slots.new_zeros(3 * most + 1)
        tokens = torch.empty_like(slots.token_slots)
        found = slots.step_cache[TokenBlocks] = TokenBlocks(tokens, numbers[:-1].view(most, 3))
        given = slots.token_slots, tokens, found.blocks, numbers[-1:], count
        _sort[count,](*given, COUNT=triton.next_power_of_2(count), SIZE=size)
    return found

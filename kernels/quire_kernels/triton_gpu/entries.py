"""Which tokens use which slot of adapters, in blocks of one slot that kernels compute at once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.low_rank import Segments, TokenSlots

MOST_BLOCKS = 64
"""Of tokens that the device sorts: programs of more would mostly find no block, and cost time nevertheless."""


@dataclass(frozen=True)
class Tile:
    """Inputs and outputs that a program reads at once; inputs of a program, if a sum over them is split.

    blocks: that run side by side, the others after them.
    """

    inputs: int
    outputs: int
    split: int
    blocks: int


@dataclass(frozen=True)
class Entries:
    """tokens: int32 [N], those of a slot side by side. weights: float32 [N].

    blocks: int32 [blocks, 3], the slot, the first entry and the number of entries, of one slot; the last may have none.
    """

    tokens: Tensor
    weights: Tensor
    blocks: Tensor


@triton.jit
def _sort(
    slots,
    weights,
    tokens,
    weights_of_entries,
    blocks,
    number_of_blocks,
    count,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The place of one token among all. The first of each BLOCK tokens of a slot adds their block.

    Tokens without an adapter (slot -1) come first. number_of_blocks: 0 before. Grid: tokens.
    """
    token, others = tl.program_id(0), tl.arange(0, COUNT)
    slot = tl.load(slots + token)
    slot_of = tl.load(slots + others, mask=others < count, other=2147483647)
    same = slot_of == slot
    before = tl.sum((same & (others < token)).to(tl.int32))
    entry = tl.sum((slot_of < slot).to(tl.int32)) + before
    number = tl.minimum(tl.sum(same.to(tl.int32)) - before, BLOCK)
    tl.store(tokens + entry, token)
    tl.store(weights_of_entries + entry, tl.load(weights + token))
    if (slot >= 0) & (before % BLOCK == 0):
        block = blocks + tl.atomic_add(number_of_blocks, 1) * 3
        tl.store(block, slot)
        tl.store(block + 1, entry)
        tl.store(block + 2, number)


def sorted_tokens(slots: TokenSlots, block: int) -> Entries:
    """Blocks of up to `block` tokens, which the device finds. Cached for the step."""
    found: Entries | None = slots.step_cache.get(Entries)
    if found is None:
        count, blocks = len(slots.token_slots), triton.cdiv(len(slots.token_slots), MOST_BLOCKS) * MOST_BLOCKS
        numbers = slots.token_slots.new_zeros(3 * blocks + 1)
        tokens, weights = torch.empty_like(slots.token_slots), torch.empty_like(slots.token_weights)
        found = slots.step_cache[Entries] = Entries(tokens, weights, numbers[:-1].view(blocks, 3))
        given = slots.token_slots, slots.token_weights, tokens, weights, found.blocks, numbers[-1:], count
        _sort[count,](*given, COUNT=triton.next_power_of_2(count), BLOCK=block)
    return found


def entries_of(segments: Segments, block: int) -> tuple[Entries, list[int]]:
    """Blocks of up to `block` tokens, and the first block of each pass. Cached for the step."""
    found: tuple[Entries, list[int]] | None = segments.step_cache.get(Entries)
    if found is None:
        host, items, passes = segments.host, list[tuple[int, int, int]](), [0]
        for first, last in pairwise(segments.passes):
            for s in range(first, last):
                begin, end = int(host.starts[s]), int(host.starts[s + 1])
                items += [(int(host.slots[s]), at, min(block, end - at)) for at in range(begin, end, block)]
            passes.append(len(items))
        blocks = torch.from_numpy(np.asarray(items, np.int32)).to(segments.tokens.device, non_blocking=True)
        found = segments.step_cache[Entries] = Entries(segments.tokens, segments.weights, blocks), passes
    return found

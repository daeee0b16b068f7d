"""The ops `argmax` and `mask_logits` for GPUs."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable

BLOCK = 4096
"""Logits of a program."""


@triton.jit
def largest(logits, values, ids, vocab, row_stride, BLOCK: tl.constexpr):
    """The largest of BLOCK logits and its lowest id; NaN counts as infinity. Grid: rows, blocks."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    found = tl.load(logits + tl.program_id(0).to(tl.int64) * row_stride + at, mask=inside, other=float("-inf"))
    found = tl.where(found <= float("inf"), found, float("inf"))
    top = tl.max(found, 0)
    to = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + to, top)
    tl.store(ids + to, tl.min(tl.where((found == top) & inside, at, vocab), 0))


@triton.jit
def largest_of_blocks(values, ids, out, blocks, BLOCKS: tl.constexpr):
    """Join the results of the blocks of a row; -1 where the largest logit is not finite. Grid: rows."""
    row = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    found = tl.load(values + row * blocks + block, mask=block < blocks, other=float("-inf"))
    top = tl.max(found, 0)
    first = tl.min(tl.where((found == top) & (block < blocks), block, blocks - 1), 0)
    is_finite = (top < float("inf")) & (top > float("-inf"))
    token = tl.load(ids + row * blocks + first).to(tl.int64)
    tl.store(out + row, tl.where(is_finite, token, -1))


@triton.jit
def forbid(logits, masks, rows, vocab, row_stride, words, BLOCK: tl.constexpr):
    """Store -inf where a mask's bit is 0. Grid: masks, blocks of logits."""
    mask = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    word = tl.load(masks + mask * words + at // 32, mask=inside, other=-1)
    is_forbidden = inside & (((word >> (at % 32)) & 1) == 0)
    to = logits + tl.load(rows + mask) * row_stride + at
    tl.store(to, tl.full((BLOCK,), float("-inf"), tl.float32), mask=is_forbidden)


@capturable
def argmax(logits: Tensor) -> Tensor:
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, BLOCK)
    out = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        values = torch.empty(rows, blocks, dtype=torch.float32, device=logits.device)
        ids = torch.empty(rows, blocks, dtype=torch.int32, device=logits.device)
        largest[rows, blocks](logits, values, ids, vocab, logits.stride(0), BLOCK, num_warps=8)
        largest_of_blocks[rows,](values, ids, out, blocks, triton.next_power_of_2(blocks))
    return out


@capturable
def mask_logits(logits: Tensor, masks: Tensor, rows: Tensor) -> Tensor:
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    vocab = logits.shape[1]
    if len(rows):
        forbid[len(rows), triton.cdiv(vocab, BLOCK)](
            *(logits, masks.contiguous(), rows, vocab, logits.stride(0), masks.shape[1], BLOCK), num_warps=8
        )
    return logits

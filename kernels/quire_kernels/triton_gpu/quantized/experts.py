"""Products of pairs of a token and an expert whose matrices have few bits: those of all experts in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.triton_gpu.quantized.inputs import prepared
from quire_kernels.triton_gpu.quantized.kernels import of_words
from quire_kernels.triton_gpu.quantized.matrix import TABLE, DeviceMatrix
from quire_kernels.triton_gpu.quantized.op import TILE_WORDS, TritonQuantizedLinear
from quire_kernels.triton_gpu.quantized.tiles import HALF_OF_FLOAT4, _products

OUTPUTS = 64
"""Outputs of a program."""


@triton.jit
def expert_of_block(block_ends, starts, experts, PAIRS: tl.constexpr, EXPERTS: tl.constexpr):
    """The expert of a program's block of pairs, `experts` if there is none; its pairs [PAIRS] and which of them exist.

    block_ends, starts: see `quire_kernels.triton_gpu.moe.multiply_pairs`. Pairs are counted in 32 bits: in 64, they
    would take too many registers.
    """
    block = tl.program_id(0)
    every = tl.arange(0, EXPERTS)
    ends = tl.load(block_ends + every, mask=every < experts, other=1 << 30).to(tl.int32)
    expert = tl.sum((ends <= block).to(tl.int32), 0)
    before = tl.max(tl.where(every < expert, ends, 0), 0)
    is_expert = expert < experts
    start = tl.load(starts + expert, mask=is_expert, other=0).to(tl.int32)
    end = tl.load(starts + expert + 1, mask=is_expert, other=0).to(tl.int32)
    at = start + (block - before) * PAIRS + tl.arange(0, PAIRS)
    return expert, at, at < end


@triton.jit
def multiply_quantized_pairs(
    x,
    words,
    scales,
    offsets,
    table,
    bias,
    factors,
    y,
    pairs,
    starts,
    block_ends,
    experts,
    per_row,
    outputs,
    groups,
    zero: tl.constexpr,
    inputs: tl.constexpr,
    row_words: tl.constexpr,
    PAIRS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    WORDS: tl.constexpr,
    RUN: tl.constexpr,
    GROUP_WORDS: tl.constexpr,
    BITS: tl.constexpr,
    KIND: tl.constexpr,
    EXPERTS: tl.constexpr,
    QUICK: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHS_OUTPUTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y[p] = weight[e] x[p // per_row] + bias[e] for PAIRS pairs p of an expert e and OUTPUTS outputs.

    Arguments are those of `quire_kernels.triton_gpu.moe.multiply_pairs`, of `DeviceMatrix`, whose tensors are stacked
    by expert, and of `multiply_tile`. Grid: blocks, outputs.
    """
    expert, at, is_pair = expert_of_block(block_ends, starts, experts, PAIRS, EXPERTS)
    if expert < experts:
        pair = tl.load(pairs + at, mask=is_pair, other=0)
        n = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        is_output = n < outputs
        IS_EVEN: tl.constexpr = row_words % WORDS == 0 and row_words * (32 // BITS) == inputs
        before = expert.to(tl.int64) * outputs  # outputs of the experts before
        of_n = words + (before + n[:, None]) * row_words
        of_x = x + (pair // per_row)[None] * inputs
        sums = tl.full((OUTPUTS, PAIRS), 0, tl.float32)
        for first in range(0, row_words, WORDS):
            word = first + tl.arange(0, WORDS)
            some = tl.load(of_n + word[None], mask=is_output[:, None] & (word < row_words)[None], other=0)
            of_expert = before * groups
            scale = of_words(scales + of_expert, *(n, first, outputs, groups, row_words, OUTPUTS, WORDS, GROUP_WORDS))
            scale = scale * (2.0**96 if QUICK and KIND == 2 else 1.0)
            offset = scale
            if HAS_OFFSETS:
                offset = of_words(
                    offsets + of_expert, *(n, first, outputs, groups, row_words, OUTPUTS, WORDS, GROUP_WORDS)
                )
            sums = _products(
                *(sums, some, of_x, first, is_pair, scale, offset, table, zero, inputs, WORDS, RUN, BITS, KIND),
                *(True, HAS_OFFSETS, QUICK, IS_EVEN, WIDE),
            )
        if QUICK and KIND == 2:
            sums *= HALF_OF_FLOAT4
        found = tl.trans(sums)
        if HAS_BIAS:
            found += tl.load(bias + before + n, mask=is_output, other=0.0).to(tl.float32)[None]
        if WEIGHS_OUTPUTS:
            found *= tl.load(factors + pair, mask=is_pair, other=0.0)[:, None]
        to = y + pair[:, None] * outputs + n[None]
        tl.store(to, found.to(y.dtype.element_ty), mask=is_pair[:, None] & is_output[None])


@dataclass(frozen=True, eq=False)
class ExpertStack:
    """Equal forms of quantized matrices, one for each expert.

    form: the matrix of the first. words, scales, offsets: [experts, N, …]. bias: [experts, N]. rounds, is_quick: see
    `TritonQuantizedLinear`.
    """

    form: DeviceMatrix
    words: Tensor
    scales: Tensor
    offsets: Tensor | None
    bias: Tensor | None
    rounds: bool
    is_quick: bool

    @classmethod
    def from_arguments(cls, bound: Sequence[Any]) -> ExpertStack | None:
        """The matrices, which become parts of the stack; None if they cannot be multiplied together."""
        if not bound or not all(isinstance(each, TritonQuantizedLinear) and each.dtype.itemsize == 2 for each in bound):
            return None
        matrices, (first, *_) = [each.matrix for each in bound], bound
        form = first.matrix
        if any(each.order is not None for each in matrices) or len({_form(each) for each in bound}) > 1:
            return None
        if form.kind == TABLE and not all(torch.equal(form.table, each.table) for each in matrices):
            return None
        of_scales = {each.scales.dtype for each in matrices}
        words, scales = torch.stack([each.words for each in matrices]), [each.scales for each in matrices]
        stacked = torch.stack(scales if len(of_scales) == 1 else [each.float() for each in scales])
        found = [each.offsets.float() for each in matrices if each.offsets is not None]
        offsets = torch.stack(found) if found else None
        biases = [each.bias for each in bound if each.bias is not None]
        for i, each in enumerate(bound):  # so that codes are in memory once
            own = None if offsets is None else offsets[i]
            each.matrix = replace(each.matrix, words=words[i], scales=stacked[i], offsets=own)
        bias, is_quick = torch.stack(biases) if biases else None, first.is_quick(first.dtype, False)
        return cls(first.matrix, words, stacked, offsets, bias, first.rounds, is_quick)

    def multiply(self, x: Tensor, per_row: int, pairs: Any, factors: Tensor | None, dtype: torch.dtype) -> Tensor:
        """y [pairs, N] of x [rows, K], each row for `per_row` pairs; zeros where an expert is not held.

        pairs: `SortedPairs`. factors: float32, of each pair's result.
        """
        experts, outputs, row_words = self.words.shape
        form, x = self.form, prepared(x.contiguous(), None, self.rounds)
        y = torch.zeros(len(pairs.order), outputs, dtype=dtype, device=x.device)
        multiply_quantized_pairs[pairs.programs, triton.cdiv(outputs, OUTPUTS)](
            *(x, self.words, self.scales, self.scales if self.offsets is None else self.offsets, form.table),
            *(y if self.bias is None else self.bias, y if factors is None else factors, y),
            *(pairs.order, pairs.starts, pairs.block_ends, experts, per_row, outputs, self.scales.shape[2]),
            **{"zero": float(form.zero), "inputs": form.shape[1], "row_words": row_words, "PAIRS": pairs.block},
            **{"OUTPUTS": OUTPUTS, "WORDS": TILE_WORDS[form.bits], "RUN": form.run, "GROUP_WORDS": form.group_words},
            **{"BITS": form.bits, "KIND": form.kind, "EXPERTS": triton.next_power_of_2(experts)},
            QUICK=self.is_quick,
            HAS_OFFSETS=self.offsets is not None,
            HAS_BIAS=self.bias is not None,
            WEIGHS_OUTPUTS=factors is not None,
            WIDE=x.device.type == "cpu",  # the interpreter has no bf16 dot
            num_warps=4,
            num_stages=3,
        )
        return y


def _form(bound: TritonQuantizedLinear) -> tuple[Any, ...]:
    """What the matrices of a stack have in common."""
    matrix = bound.matrix
    has = matrix.offsets is not None, bound.bias is not None
    return matrix.shape, matrix.bits, matrix.run, matrix.group_words, matrix.kind, matrix.zero, bound.rounds, *has

"""The op `moe` for GPUs: all products of a step with the experts' first matrices in one launch, with the second in one.

Pairs of a token and an expert are sorted by expert on the device; each program multiplies a block of pairs of one
expert. The number of programs depends on shapes alone, so nothing waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.moe import ExpertMlp
from quire_kernels.ops import BoundLinear
from quire_kernels.pytorch.moe import SortedExperts
from quire_kernels.reference_moe import Activations
from quire_kernels.triton_gpu.quantized.experts import ExpertStack, expert_of_block
from quire_kernels.triton_gpu.rows.acts import act, gated_act

OUTPUTS, INPUTS = 128, 64
"""Outputs of a program, and inputs that it reads at a time."""

MAX_TOKENS = 256
"""Of a step whose quantized experts are multiplied together."""


@triton.jit
def multiply_pairs(
    x,
    weight,
    bias,
    factors,
    y,
    pairs,
    starts,
    block_ends,
    experts,
    per_row,
    outputs,
    inputs,
    PAIRS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    EXPERTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    WEIGHS_INPUTS: tl.constexpr,
    WEIGHS_OUTPUTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y[p] = weight[e] x[p // per_row] + bias[e] for PAIRS pairs p of an expert e and OUTPUTS outputs.

    pairs int64: numbers of the pairs, sorted by expert, of which expert e has starts[e] … starts[e + 1] - 1.
    block_ends int64 [experts]: how many blocks of PAIRS pairs the experts up to e have. Grid: blocks, outputs.
    """
    expert, at, is_pair = expert_of_block(block_ends, starts, experts, PAIRS, EXPERTS)
    if expert < experts:
        pair = tl.load(pairs + at, mask=is_pair, other=0).to(tl.int32)  # of 64 bits, it would take too many registers
        row = pair // per_row
        n = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
        matrix = weight + expert.to(tl.int64) * outputs * inputs
        at_n = tl.minimum(n, outputs - 1).to(tl.int64) * inputs  # what is read beyond the outputs is not stored
        if WEIGHS_INPUTS:
            factor = tl.load(factors + pair, mask=is_pair, other=0.0)
        sums = tl.full((PAIRS, OUTPUTS), 0, tl.float32)
        for first in range(0, inputs, INPUTS):
            m = first + tl.arange(0, INPUTS)
            at_x = row[:, None].to(tl.int64) * inputs + m[None]
            some_x = tl.load(x + at_x, mask=is_pair[:, None] & (m < inputs)[None], other=0.0)
            some_weight = tl.load(matrix + at_n[None] + m[:, None], mask=(m < inputs)[:, None], other=0.0)
            if WEIGHS_INPUTS:
                some_x = (some_x.to(tl.float32) * factor[:, None]).to(x.dtype.element_ty)
            if WIDE:
                some_x, some_weight = some_x.to(tl.float32), some_weight.to(tl.float32)
            sums = tl.dot(some_x, some_weight, sums, input_precision="tf32x3")
        if HAS_BIAS:
            sums += tl.load(bias + expert * outputs + n, mask=n < outputs, other=0.0).to(tl.float32)[None]
        if WEIGHS_OUTPUTS:
            sums *= tl.load(factors + pair, mask=is_pair, other=0.0)[:, None]
        to = y + pair[:, None].to(tl.int64) * outputs + n[None]
        tl.store(to, sums.to(y.dtype.element_ty), mask=is_pair[:, None] & (n < outputs)[None])


@dataclass(frozen=True)
class SortedPairs:
    """Pairs of a token and an expert in the order of their experts; those of experts that are not held come last.

    order int64 [pairs]; starts, block_ends: those of `multiply_pairs`. block: pairs of a program.
    """

    order: Tensor
    starts: Tensor
    block_ends: Tensor
    block: int

    @classmethod
    def from_chosen(cls, chosen: Tensor, first: int, count: int) -> SortedPairs:
        """chosen int64 [T, J]: experts, of which `count` are held from `first` on."""
        mine = chosen.reshape(-1) - first
        mine = torch.where((mine >= 0) & (mine < count), mine, count)
        experts, order = mine.sort(stable=True)
        starts = torch.searchsorted(experts, torch.arange(count + 1, device=chosen.device))
        block = 64 if len(mine) >= 32 * count else 16
        blocks = (starts[1:] - starts[:-1] + (block - 1)) // block
        return cls(order, starts, blocks.cumsum(0), block)

    @property
    def programs(self) -> int:
        """At most so many blocks have a pair, whatever the experts are."""
        pairs, experts = len(self.order), len(self.block_ends)
        return min(pairs, pairs // self.block + experts)


class TritonExperts(SortedExperts):
    """`ops.BoundMoe` of stacked matrices, and of quantized ones for up to MAX_TOKENS tokens.

    Bound matrices that cannot be stacked are multiplied one expert after another, and so are quantized ones for more
    tokens: each is then dequantized for the library's product.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        found = [None if isinstance(each, Tensor) else ExpertStack.from_arguments(each) for each in self._matrices]
        self._stacks = [each for each in found if each is not None]

    @property
    def capturable(self) -> bool:
        """Whether its launches depend on shapes alone: which bound matrices are multiplied depends on the tokens."""
        return isinstance(self._matrices[0], Tensor) or len(self._stacks) == 2

    def __call__(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x [T, W]; weights float32 and chosen int64 [T, J] -> [T, W], data type of x."""
        if chosen.numel() and len(self._stacks) == 2 and len(x) <= MAX_TOKENS:
            return self._quantized(x, weights, chosen)
        if not isinstance(self._matrices[0], Tensor) or not chosen.numel():
            return super().__call__(x, weights, chosen)
        pairs = SortedPairs.from_chosen(chosen, self.mlp.first or 0, self.count)
        factors, (tokens, uses) = weights.contiguous(), chosen.shape
        products = self._multiply(False, x.contiguous(), uses, pairs, factors, x.dtype)
        y = self._multiply(True, self.activate(products).contiguous(), 1, pairs, factors, torch.float32)
        return y.view(tokens, uses, -1).sum(1).to(x.dtype)

    def _quantized(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        pairs = SortedPairs.from_chosen(chosen, self.mlp.first or 0, self.count)
        (tokens, uses), (first, second) = chosen.shape, self._stacks
        given, per_row, factors = x, uses, weights.contiguous()
        if self.mlp.weighs_inputs:
            given, per_row = (x[:, None] * weights[..., None]).to(x.dtype).flatten(0, 1), 1
        products = first.multiply(given, per_row, pairs, None, x.dtype)
        shares = None if self.mlp.weighs_inputs else factors
        y = second.multiply(self.activate(products), 1, pairs, shares, torch.float32)
        return y.view(tokens, uses, -1).sum(1).to(x.dtype)

    def _multiply(
        self, second: bool, x: Tensor, per_row: int, pairs: SortedPairs, factors: Tensor, dtype: torch.dtype
    ) -> Tensor:
        weight, bias = self._matrices[second], self._biases[second]
        assert isinstance(weight, Tensor)
        experts, outputs, inputs = weight.shape
        y = torch.zeros(len(pairs.order), outputs, dtype=dtype, device=x.device)  # also of experts that are not held
        multiply_pairs[pairs.programs, triton.cdiv(outputs, OUTPUTS)](
            *(x, weight, weight if bias is None else bias, factors, y, pairs.order, pairs.starts, pairs.block_ends),
            *(experts, per_row, outputs, inputs, pairs.block, OUTPUTS, INPUTS),
            EXPERTS=triton.next_power_of_2(experts),
            HAS_BIAS=bias is not None,
            WEIGHS_INPUTS=self.mlp.weighs_inputs and not second,
            WEIGHS_OUTPUTS=second and not self.mlp.weighs_inputs,
            WIDE=x.device.type == "cpu",  # the interpreter has no bf16 dot
            num_warps=4,
            num_stages=4 if x.element_size() == 2 else 2,
        )
        return y


@capturable
def moe(
    up: Tensor | Sequence[BoundLinear],
    down: Tensor | Sequence[BoundLinear],
    mlp: ExpertMlp,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> TritonExperts:
    if isinstance(up, Tensor) and isinstance(down, Tensor):
        up, down = up.contiguous(), down.contiguous()
    return TritonExperts(up, down, mlp, up_bias, down_bias, Activations(gated_act, act))

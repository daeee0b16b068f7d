"""Blocks of products with adapters, one after another and beside an activation, as programs run them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from compiled_rig import forward_of
from torch import Tensor

from quire_kernels.cpu.compiled.program import Program
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.cpu.structs import Op
from quire_kernels.low_rank import LowRankUpdate, Segments, pack_all

WIDTH, SLOTS = 96, 8
QKV = ((0, 48), (48, 64), (64, 96))
INNER = (80, 704, 4128)
"""Numbers of inputs: AMX tiles take them at once, in parts, and in parts for all rows of an item."""

RANKS = (16, 8, 3, 40, 64, 1, 12)
"""Of the adapters in the slots. The third has scales and shifts; the sixth changes one slice alone."""

Uses = Sequence[tuple[tuple[int, float], ...]]

LENS = (1, 9, 1, 34, 1, 3, 70, 1, 2, 12, 1)
USES: Uses = (
    ((0, 1.0),),
    ((1, 0.5),),
    (),
    ((4, 1.0),),
    ((4, 2.0),),
    ((2, 0.5),),
    ((0, 1.0),),
    ((3, 1.0),),
    ((5, 1.0),),
    ((6, -1.0),),
    ((7, 1.0),),
)
"""The last one's slot is empty."""

SEVERAL: Uses = (*USES[:3], ((4, 1.0), (2, 0.5)), ((0, 1.0), (1, -0.5), (3, 0.25)), *USES[5:])


class AdaptedBlock:
    """y = x + down(act(gate_up(qkv(x)))), each product with adapters."""

    def __init__(self, ops: CpuOps, dtype: torch.dtype, inner: int = INNER[0], infinite: bool = False) -> None:
        """inner: inputs of `down`. infinite: whether b of the first adapter has an infinite element."""
        made = torch.Generator().manual_seed(0)
        self.ops, self.dtype, self.infinite = ops, dtype, infinite
        self.bias = torch.randn(WIDTH, generator=made).to(dtype)
        halves = (0, inner), (inner, 2 * inner)
        shapes = [(WIDTH, WIDTH, QKV), (2 * inner, WIDTH, halves), (WIDTH, inner, ((0, WIDTH),))]
        self.slices = [slices for _, _, slices in shapes]
        self.weights = [(torch.randn(o, i, generator=made) / i**0.5).to(dtype) for o, i, _ in shapes]
        self.updates = [[self._updates(slot, i, slices, made) for slot in range(len(RANKS))] for _, i, slices in shapes]
        self.products = [
            ops.linear(self.weights[0], self.bias),
            ops.linear(self.weights[1], None, gated=True),
            ops.linear(self.weights[2], None),
        ]
        self.slots = [ops.low_rank(i, slices, SLOTS, dtype) for _, i, slices in shapes]
        for slots, updates in zip(self.slots, self.updates, strict=True):
            for slot, packed in enumerate(pack_all([(slots, each) for each in updates])[0]):
                slots.put(slot, packed)
        self.run = ops.fused_blocks((self,), WIDTH)

    def _updates(self, slot: int, inputs: int, slices: Any, made: torch.Generator) -> list[LowRankUpdate | None]:
        found: list[LowRankUpdate | None] = []
        for number, (start, stop) in enumerate(slices):
            a = torch.randn(RANKS[slot], inputs, generator=made) / inputs**0.5
            b = torch.randn(stop - start, RANKS[slot], generator=made) / RANKS[slot] ** 0.5
            if slot == 0 and self.infinite:
                b[3, 0] = float("inf")
            scale, shift = (torch.randn(stop - start, generator=made) for _ in range(2))
            found.append(LowRankUpdate(a, b, scale, shift) if slot == 2 else LowRankUpdate(a, b))
            if slot == 5 and number:
                found[-1] = None
        return found

    def __call__(self, x: Any, fwd: Any) -> Any:
        y = self.slots[0](self.products[0](x), x, fwd.adapters)
        y = self.ops.gated_act(self.slots[1](self.products[1](y), y, fwd.adapters), "silu")
        y = x + self.slots[2](self.products[2](y), y, fwd.adapters)
        return y.index_select(0, fwd.logit_rows)

    @property
    def program(self) -> Program:
        """With adapters."""
        (program,) = self.run._adapted_stages[False]
        assert isinstance(program, Program)
        return program

    @property
    def operations(self) -> list[Op]:
        return [Op(instruction.op) for instruction in self.program._code]

    def expected(self, x: Tensor, uses: Uses, lens: Sequence[int]) -> Tensor:
        """In float64, with the outputs of products rounded."""
        orders = [use for use, length in zip(uses, lens, strict=True) for _ in range(length)]

        def product(number: int, x: Tensor, bias: Tensor | None) -> Tensor:
            y = F.linear(x, self.weights[number].double(), None if bias is None else bias.double())
            slices = self.slices[number]
            for t, order in enumerate(orders):
                for slot, factor in order:
                    for (start, stop), update in zip(
                        slices, self.updates[number][slot] if slot < len(RANKS) else (), strict=False
                    ):
                        if update is None:
                            continue
                        part = y[t, start:stop]
                        if update.scale is not None and update.shift is not None:
                            part *= 1 + factor * (update.scale.double() - 1)
                            part += factor * update.shift.double()
                        middle = (update.a.to(self.dtype).double() @ x[t]) * factor
                        part += update.b.to(self.dtype).double() @ middle.to(self.dtype).double()
            return y.to(self.dtype).double()

        x = x.double()
        gate, up = product(1, product(0, x, self.bias), None).chunk(2, -1)
        return x + product(2, (F.silu(gate) * up).to(self.dtype).double(), None)


def run_block(block: AdaptedBlock, x: Tensor, uses: Uses, lens: Sequence[int], selected: int = 0) -> Tensor:
    """The block's result of the last `selected` tokens, or of all."""
    segments = Segments.from_uses(uses, lens)
    rows = range(len(x) - (selected or len(x)), len(x))
    return block.run(x.clone(), forward_of(len(x), segments, rows)).clone()


def check_close(block: AdaptedBlock) -> None:
    """Tokens in one step, and the last ones of a step alone, give what is expected."""
    x = torch.randn(sum(LENS), WIDTH, generator=torch.Generator().manual_seed(1)).to(block.dtype)
    tolerance = 1e-5 if block.dtype == torch.float32 else 0.02
    for uses in (USES, SEVERAL):
        for first, end in ((0, 11), (0, 2), (3, 4), (0, 5), (7, 11), (6, 8)):
            begin = sum(LENS[:first])
            some = x[begin : begin + sum(LENS[first:end])]
            want = block.expected(some, uses[first:end], LENS[first:end])
            for selected in (len(some), 1, min(7, len(some))):
                got = run_block(block, some, uses[first:end], LENS[first:end], selected)
                assert (got.double() - want[-selected:]).abs().max() <= tolerance * want.abs().max()


def check_alone(block: AdaptedBlock) -> None:
    """Each request's tokens give the same to the last bit with others, without them, and one by one."""
    x = torch.randn(sum(LENS), WIDTH, generator=torch.Generator().manual_seed(1)).to(block.dtype)
    for uses in (USES, SEVERAL):
        together = run_block(block, x, uses, LENS)
        begin = 0
        for use, length in zip(uses, LENS, strict=True):
            rows = slice(begin, begin + length)
            assert torch.equal(run_block(block, x[rows], [use], [length]), together[rows]), use
            for t in (begin, begin + length - 1):
                assert torch.equal(run_block(block, x[t : t + 1], [use], [1])[0], together[t]), use
            begin += length


def check_infinite(ops: CpuOps) -> None:
    """Tokens do not see that another's adapter is infinite."""
    finite, infinite = (AdaptedBlock(ops, torch.bfloat16, infinite=each) for each in (False, True))
    x = torch.randn(sum(LENS), WIDTH, generator=torch.Generator().manual_seed(1)).bfloat16()
    got, want = (run_block(block, x, USES, LENS) for block in (infinite, finite))
    users = torch.tensor([bool(use) and use[0][0] == 0 for use in USES]).repeat_interleave(torch.tensor(LENS))
    assert torch.equal(got[~users], want[~users])
    assert not got[users].isfinite().all()

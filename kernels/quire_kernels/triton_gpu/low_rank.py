"""The op `low_rank` for GPUs, in Triton. Kernels find the adapters' weights through tables of addresses (BGMV/SGMV).

One kernel multiplies blocks of a segment's tokens with a, another with b. A block of an adapter with a lower rank than
another's ends early (Punica, arXiv 2310.18547).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from quire_kernels.candidates.capture import capturable
from quire_kernels.low_rank import Segments, TokenSlots
from quire_kernels.pytorch import low_rank as torch_low_rank
from quire_kernels.pytorch.low_rank import PackedWeights
from quire_kernels.triton_gpu import token_low_rank

TOKENS = 16
"""Tokens of a block; the minimum for tensor cores."""

RANKS = 16
INPUTS = 64
OUTPUTS = 64

_HEAD = 2
"""Table columns before those of the slices: address of a, sum of its ranks."""

_COLUMNS = 5
"""Table columns of each slice: addresses of bᵀ, scale and shift (0: none), rank, index of its first rank in a."""

_ALIGNMENT = 16
"""Of addresses in the table, in bytes: that of tensors which torch allocates is larger."""


@triton.jit
def _add_product(a, b, sums, WIDE: tl.constexpr):
    if WIDE:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, sums, input_precision="ieee")


@triton.jit
def _shrink(
    x,
    x_stride,
    h,
    h_stride,
    tokens,
    weights,
    blocks,
    table,
    table_stride,
    inputs: tl.constexpr,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """h[entry] = w · x[token] aᵀ for one block of entries and RANKS ranks."""
    block = blocks + tl.program_id(0) * 3
    row = table + tl.load(block).to(tl.int64) * table_stride
    rank = tl.load(row + 1)
    ranks = tl.program_id(1) * RANKS + tl.arange(0, RANKS)
    if tl.program_id(1) * RANKS < rank:
        entries = tl.load(block + 1) + tl.arange(0, TOKENS)
        is_entry = tl.arange(0, TOKENS) < tl.load(block + 2)
        token = tl.load(tokens + entries, mask=is_entry, other=0).to(tl.int64)
        a = tl.multiple_of(tl.load(row).to(tl.pointer_type(x.dtype.element_ty)), 16)
        sums = tl.full((TOKENS, RANKS), 0, tl.float32)
        for first in range(0, inputs, INPUTS):
            at = first + tl.arange(0, INPUTS)
            inside = at < inputs
            some_x = tl.load(x + token[:, None] * x_stride + at[None], mask=is_entry[:, None] & inside[None], other=0.0)
            some_a = tl.load(
                a + ranks[None].to(tl.int64) * inputs + at[:, None],
                mask=inside[:, None] & (ranks[None] < rank),
                other=0.0,
            )
            sums = _add_product(some_x, some_a, sums, WIDE)
        weight = tl.load(weights + entries, mask=is_entry, other=0.0)
        to = h + entries[:, None].to(tl.int64) * h_stride + ranks[None]
        tl.store(to, sums * weight[:, None], mask=is_entry[:, None] & (ranks[None] < rank))


@triton.jit
def _expand(
    y,
    y_stride,
    h,
    h_stride,
    tokens,
    weights,
    blocks,
    table,
    table_stride,
    slices,
    kind,
    TOKENS: tl.constexpr,
    RANKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    UNIT: tl.constexpr,
    HEAD: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """y[token] = y · (1 + w (scale - 1)) + w · shift + h[entry] bᵀ for one block of entries and OUTPUTS outputs of a
    slice. Starts and widths of slices are multiples of UNIT.
    """
    block = blocks + tl.program_id(0) * 3
    row = table + tl.load(block).to(tl.int64) * table_stride + HEAD + tl.program_id(1) * COLUMNS
    start = tl.multiple_of(tl.load(slices + 2 * tl.program_id(1)), UNIT)
    width = tl.multiple_of(tl.load(slices + 2 * tl.program_id(1) + 1) - start, UNIT)
    b_at, scale_at, shift_at = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    rank, first_rank = tl.load(row + 3), tl.load(row + 4)
    outputs = tl.program_id(2) * OUTPUTS + tl.arange(0, OUTPUTS)
    if (tl.program_id(2) * OUTPUTS < width) & ((b_at != 0) | (scale_at != 0) | (shift_at != 0)):
        entries = tl.load(block + 1) + tl.arange(0, TOKENS)
        is_entry = tl.arange(0, TOKENS) < tl.load(block + 2)
        inside = outputs < width
        token = tl.load(tokens + entries, mask=is_entry, other=0).to(tl.int64)
        weight = tl.load(weights + entries, mask=is_entry, other=0.0)
        sums = tl.full((TOKENS, OUTPUTS), 0, tl.float32)
        b = tl.multiple_of(b_at.to(tl.pointer_type(kind.dtype.element_ty)), 16)
        first = tl.full((), 0, tl.int64)
        while first < rank:  # Triton's interpreter has no range() up to a loaded value
            at = first + tl.arange(0, RANKS)
            some_h = tl.load(
                h + entries[:, None].to(tl.int64) * h_stride + first_rank + at[None],
                mask=is_entry[:, None] & (at[None] < rank),
                other=0.0,
            )
            some_b = tl.load(
                b + at[:, None] * width + outputs[None],
                mask=(at[:, None] < rank) & inside[None],
                other=0.0,
            )
            sums = _add_product(some_h.to(kind.dtype.element_ty), some_b, sums, WIDE)
            first += RANKS
        to = y + token[:, None] * y_stride + start + outputs[None]
        mask = is_entry[:, None] & inside[None]
        value = tl.load(to, mask=mask, other=0.0).to(tl.float32)
        if scale_at != 0:
            scale = tl.load(scale_at.to(tl.pointer_type(tl.float32)) + outputs, mask=inside, other=1.0)
            value = value * (1.0 + weight[:, None] * (scale[None] - 1.0))
        if shift_at != 0:
            shift = tl.load(shift_at.to(tl.pointer_type(tl.float32)) + outputs, mask=inside, other=0.0)
            value = value + weight[:, None] * shift[None]
        tl.store(to, (value + sums).to(y.dtype.element_ty), mask=mask)


class TritonAdapterSlots(torch_low_rank.TorchAdapterSlots):
    """`low_rank.AdapterSlots` on a GPU. Row s of a device table holds the addresses and ranks of the weights in slot
    s.
    """

    def __init__(
        self, inputs: int, slices: Sequence[tuple[int, int]], slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(inputs, slices, slots, dtype, device)
        self._edges = torch.tensor([edge for pair in slices for edge in pair], dtype=torch.int32, device=device)
        self._table = torch.zeros(slots, _HEAD + _COLUMNS * len(slices), dtype=torch.int64, device=device)
        self._widest = max((stop - start for start, stop in slices), default=0)
        unit = 1 if any(edge % 8 for pair in slices for edge in pair) else 8
        self._layout = {"HEAD": _HEAD, "COLUMNS": _COLUMNS, "UNIT": unit}
        self._chunks = _chunks(slices, token_low_rank.OUTPUTS).to(device)
        self._ranks = [0] * slots

    def _laid_out(self, b: Tensor | None) -> Tensor | None:
        return None if b is None else b.T

    def put(self, slot: int, packed: PackedWeights) -> None:
        super().put(slot, packed)
        weights_of_slot = self._adapter_slots[slot]
        assert weights_of_slot is not None
        self._ranks[slot] = len(weights_of_slot.a)
        row = [weights_of_slot.a.data_ptr(), len(weights_of_slot.a)]
        for first, delta in weights_of_slot.slices:
            row += [0 if part is None else part.data_ptr() for part in (delta.b, delta.scale, delta.shift)]
            row += [0 if delta.b is None else delta.b.shape[0], first]
        starts = (row[0], *(row[column] for first in range(3) for column in range(_HEAD + first, len(row), _COLUMNS)))
        assert self._device.type == "cpu" or not any(start % _ALIGNMENT for start in starts), "torch aligns tensors"
        self._table[slot].copy_(torch.tensor(row, dtype=torch.int64), non_blocking=True)

    def clear(self, slot: int) -> None:
        super().clear(slot)
        self._ranks[slot] = 0
        self._table[slot].zero_()

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        if not len(segments) and not isinstance(segments, TokenSlots):
            return y
        if x.stride(-1) != 1:
            x = x.contiguous()
        if y.stride(-1) != 1:
            return y.copy_(self(y.contiguous(), x, segments))
        if isinstance(segments, TokenSlots):
            token_low_rank.apply(y, x, segments, self._table, self._chunks, self._layout)
            return y
        blocks, passes = _blocks(segments)
        ranks = max(self._ranks[slot] for slot in segments.host.slots.tolist())
        h = torch.empty(len(segments.tokens), max(ranks, 1), dtype=torch.float32, device=y.device)
        for first, last in pairwise(passes):
            self._run_pass(y, x, h, segments, blocks[first:last], ranks)
        return y

    def _run_pass(self, y: Tensor, x: Tensor, h: Tensor, segments: Segments, blocks: Tensor, ranks: int) -> None:
        entries = segments.tokens, segments.weights, blocks, self._table, self._table.stride(0)
        sizes = {
            "TOKENS": TOKENS,
            "RANKS": RANKS,
            "WIDE": y.device.type == "cpu",
        }  # the interpreter has no bfloat16 dot
        if ranks:
            _shrink[len(blocks), triton.cdiv(ranks, RANKS)](
                *(x, x.stride(0), h, h.stride(0), *entries, self._inputs), **sizes, INPUTS=INPUTS
            )
        _expand[len(blocks), len(self._slices), triton.cdiv(self._widest, OUTPUTS)](
            *(y, y.stride(0), h, h.stride(0), *entries, self._edges, x),
            **{**sizes, "OUTPUTS": OUTPUTS, **self._layout},
        )


def _chunks(slices: Sequence[tuple[int, int]], outputs: int) -> Tensor:
    """int32 [chunks, 4]: for each run of up to `outputs` outputs its slice, where that starts, its width, the first."""
    rows = [
        (number, start, stop - start, first)
        for number, (start, stop) in enumerate(slices)
        for first in range(0, stop - start, outputs)
    ]
    return torch.tensor(rows, dtype=torch.int32).reshape(-1, 4)


def _blocks(segments: Segments) -> tuple[Tensor, list[int]]:
    """int32 [blocks, 3]: (slot, first entry, number of entries), and the first block of each pass. Cached for the
    step.
    """
    found: Any = segments.step_cache.get(TritonAdapterSlots)
    if found is None:
        host, items, passes = segments.host, list[tuple[int, int, int]](), [0]
        for first, last in pairwise(segments.passes):
            for s in range(first, last):
                begin, end = int(host.starts[s]), int(host.starts[s + 1])
                items += [(int(host.slots[s]), at, min(TOKENS, end - at)) for at in range(begin, end, TOKENS)]
            passes.append(len(items))
        table = torch.from_numpy(np.asarray(items, np.int32)).to(segments.tokens.device, non_blocking=True)
        found = segments.step_cache[TritonAdapterSlots] = table, passes
    return found


@capturable
def low_rank(
    inputs: int,
    slices: Sequence[tuple[int, int]],
    slots: int,
    dtype: torch.dtype,
    device: torch.device | str = "cuda",
) -> TritonAdapterSlots:
    return TritonAdapterSlots(inputs, slices, slots, dtype, torch.device(device))

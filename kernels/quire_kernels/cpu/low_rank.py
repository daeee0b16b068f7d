"""The op `low_rank` in C++: what adapters seated on one projection add to its outputs.

Packed shares stay where they were packed: to take a seat is to be pointed at.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof, c_int64, c_void_p
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels.cpu.layout import POINTER, Op
from quire_kernels.cpu.low_rank_packing import Packed, Packing
from quire_kernels.cpu.tape import Symbol
from quire_kernels.low_rank import Deltas, Segments, checked_seat

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

SOME_TOKENS = 32
"""Tokens of a segment that a thread does together, at most; as in `csrc/low_rank.hpp`."""


class Seats(ctypes.Structure):
    """See `csrc/low_rank.hpp`."""

    _fields_ = (("shares", POINTER), ("count", c_int64), ("inputs", c_int64))


class StepSegments(ctypes.Structure):
    """See `csrc/low_rank.hpp`."""

    _fields_ = (
        ("tokens", POINTER),
        ("weights", POINTER),
        ("items", POINTER),
        ("turns", POINTER),
        ("num_turns", c_int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """Segments as C++ takes them, and what the struct points to."""

    struct: StepSegments
    kept: tuple[Any, ...]


def cut(segments: Segments, threads: int) -> Cut:
    """Segments cut into items, made once for a step: the segments keep it."""
    found: Cut | None = segments.memo.get((Cut, threads))
    if found is None:
        found = segments.memo[Cut, threads] = _cut(segments, threads)
    return found


def _cut(segments: Segments, threads: int) -> Cut:
    host, items, turns = segments.host, list[tuple[int, int, int]](), [0]
    for first, last in pairwise(segments.turns):
        total = int(host.starts[last] - host.starts[first])
        most = max(1, min(SOME_TOKENS, -(-total // threads)))
        for s in range(first, last):
            begin, end = int(host.starts[s]), int(host.starts[s + 1])
            pieces = -(-(end - begin) // most)
            edges = [begin + (end - begin) * i // pieces for i in range(pieces + 1)]
            items += [(int(host.seats[s]), a, b - a) for a, b in pairwise(edges)]
        turns.append(len(items))
    arrays = host.tokens, host.weights, np.asarray(items, np.int32), np.asarray(turns, np.int64)
    return Cut(StepSegments(*(array.ctypes.data for array in arrays), len(turns) - 1), arrays)


class CpuSeats:
    """See `quire_kernels.low_rank.Seated`."""

    def __init__(
        self, ops: CpuOps, inputs: int, slices: Sequence[tuple[int, int]], seats: int, dtype: torch.dtype
    ) -> None:
        self.inputs, self.outputs = inputs, max((stop for _, stop in slices), default=0)
        self._ops, self._dtype = ops, dtype
        self._packing = Packing(ops.library, inputs, tuple(slices), dtype)
        self._seated: list[Packed | None] = [None] * seats
        self._pointers = (c_void_p * seats)()
        self.struct = Seats(addressof(self._pointers), seats, inputs)

    def size(self, deltas: Deltas) -> int:
        """See `low_rank.Seated`."""
        return self._packing.size(deltas)

    def pack(self, deltas: Deltas, memory: Tensor | None = None) -> Packed:
        """See `low_rank.Seated`."""
        return self._packing.pack(deltas, memory)

    def put(self, seat: int, packed: Packed) -> None:
        """See `low_rank.Seated`."""
        checked_seat(seat, len(self._seated))
        self._seated[seat], self._pointers[seat] = packed, addressof(packed.share)

    def clear(self, seat: int) -> None:
        """See `low_rank.Seated`."""
        checked_seat(seat, len(self._seated))
        self._seated[seat] = self._pointers[seat] = None

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        """See `low_rank.LowRank`."""
        if isinstance(y, Symbol):
            return y.tape.low_rank(y, x, self, segments)  # type: ignore[return-value]
        wide = y.dtype == torch.float32
        fits = (y.shape[1:], x.shape[1:]) == ((self.outputs,), (self.inputs,)) and x.dtype == self._dtype
        if not fits or (not wide and y.dtype != self._dtype):
            takes = f"these seats take y [tokens, {self.outputs}] and x [tokens, {self.inputs}] in {self._dtype}"
            raise ValueError(f"low_rank: {takes}, got {list(y.shape)} in {y.dtype} and {list(x.shape)} in {x.dtype}")
        if segments.reach > len(y) or len(x) != len(y):
            raise ValueError(f"low_rank: segments of {segments.reach} tokens, y of {len(y)} and x of {len(x)}")
        if not len(segments):
            return y
        changed, x = (t if t.stride(-1) == 1 else t.contiguous() for t in (y, x))
        struct = cut(segments, torch.get_num_threads()).struct
        self._ops.run(Op.LOW_RANK, [x], changed, segments=struct, weight=addressof(self.struct), wide=int(wide))
        return changed if changed is y else y.copy_(changed)

"""The op `low_rank` in C++: applies the adapters in the slots of one projection.

Packed weights stay where they were packed: a slot holds a pointer to them.
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

from quire_kernels.cpu.compiled.proxies import Proxy
from quire_kernels.cpu.low_rank_packing import LANES, Packed, Packing
from quire_kernels.cpu.structs import POINTER, Op, PackedMatrix
from quire_kernels.low_rank import Deltas, Segments, checked_slot

if TYPE_CHECKING:
    from quire_kernels.cpu.ops import CpuOps

TOKENS_PER_ITEM = 32
"""Maximum tokens of a segment in one work item; must equal `csrc/low_rank/adapter_slots.hpp`."""


class AdapterSlotsStruct(ctypes.Structure):
    """The C++ struct `AdapterSlots` in `csrc/low_rank/adapter_slots.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("adapters", POINTER),
        ("count", c_int64),
        ("inputs", c_int64),
        ("num_slices", c_int64),
        ("outputs", c_int64),
        ("most_units", c_int64),
    )


class StepSegments(ctypes.Structure):
    """The C++ struct of the same name in `csrc/low_rank/adapter_slots.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("tokens", POINTER),
        ("weights", POINTER),
        ("items", POINTER),
        ("passes", POINTER),
        ("num_passes", c_int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class WorkItems:
    """The segments as C++ reads them, and the arrays that the struct points to."""

    struct: StepSegments
    kept: tuple[Any, ...]


def split_work(segments: Segments, threads: int) -> WorkItems:
    """Segments split into work items; cached in the segments for the step."""
    found: WorkItems | None = segments.step_cache.get((WorkItems, threads))
    if found is None:
        found = segments.step_cache[WorkItems, threads] = _split_work(segments, threads)
    return found


def _split_work(segments: Segments, threads: int) -> WorkItems:
    host, items, passes = segments.host, list[tuple[int, int, int]](), [0]
    for first, last in pairwise(segments.passes):
        total = int(host.starts[last] - host.starts[first])
        most = max(1, min(TOKENS_PER_ITEM, -(-total // threads)))
        for s in range(first, last):
            begin, end = int(host.starts[s]), int(host.starts[s + 1])
            count = -(-(end - begin) // most)
            edges = [begin + (end - begin) * i // count for i in range(count + 1)]
            items += [(int(host.slots[s]), a, b - a) for a, b in pairwise(edges)]
        passes.append(len(items))
    arrays = host.tokens, host.weights, np.asarray(items, np.int32), np.asarray(passes, np.int64)
    return WorkItems(StepSegments(*(array.ctypes.data for array in arrays), len(passes) - 1), arrays)


class CpuAdapterSlots:
    """The C++ implementation of `low_rank.AdapterSlots`."""

    def __init__(
        self, ops: CpuOps, inputs: int, slices: Sequence[tuple[int, int]], slots: int, dtype: torch.dtype
    ) -> None:
        self.inputs, self.outputs = inputs, max((stop for _, stop in slices), default=0)
        self._ops, self._dtype = ops, dtype
        self._packing = Packing(ops.library, inputs, tuple(slices), dtype)
        self._adapter_slots: list[Packed | None] = [None] * slots
        self._pointers = (c_void_p * slots)()
        self.struct = AdapterSlotsStruct(addressof(self._pointers), slots, inputs, len(slices), self.outputs, 0)

    def size(self, deltas: Deltas) -> int:
        return self._packing.size(deltas)

    def pack(self, deltas: Deltas, memory: Tensor | None = None) -> Packed:
        return self._packing.pack(deltas, memory)

    def put(self, slot: int, packed: Packed) -> None:
        checked_slot(slot, len(self._adapter_slots))
        self._adapter_slots[slot], self._pointers[slot] = packed, addressof(packed.struct)
        self.struct.most_units = max(self.struct.most_units, packed.struct.most_units)

    def clear(self, slot: int) -> None:
        checked_slot(slot, len(self._adapter_slots))
        self._adapter_slots[slot] = self._pointers[slot] = None

    def is_empty(self, slot: int, runtime_index: int = 0) -> bool:
        """Whether no adapter in this slot changes the projection. runtime_index: its own, where there are several."""
        return self._adapter_slots[slot] is None

    def is_batch_invariant(self, segments: Any) -> bool:
        """Whether no bit of a row depends on the other rows: where the kernels compute all adapters."""
        return isinstance(segments, Segments)

    def joins(self, matrix: PackedMatrix) -> bool:
        """Whether the product with this matrix can have the adapters as further terms of its sums: those of AMX tiles
        can, if 16 outputs at a time belong to the same slice.
        """
        edges = [edge for bounds in self._packing.slices for edge in bounds] + [matrix.outputs // 2 * matrix.halves]
        tiles = self._ops.library.isa.tiles and self._dtype == torch.bfloat16
        return tiles and matrix.outputs == self.outputs and not any(edge % LANES for edge in edges)

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        if isinstance(y, Proxy):
            return y.tracer.low_rank(y, x, self, segments)  # type: ignore[return-value]
        wide = y.dtype == torch.float32
        fits = (y.shape[1:], x.shape[1:]) == ((self.outputs,), (self.inputs,)) and x.dtype == self._dtype
        if not fits or (not wide and y.dtype != self._dtype):
            expected = f"expected y [tokens, {self.outputs}] and x [tokens, {self.inputs}] in {self._dtype}"
            raise ValueError(f"low_rank: {expected}, got {list(y.shape)} in {y.dtype} and {list(x.shape)} in {x.dtype}")
        if segments.min_tokens > len(y) or len(x) != len(y):
            raise ValueError(
                f"low_rank: segments need {segments.min_tokens} tokens, got y of {len(y)} and x of {len(x)}"
            )
        if not len(segments):
            return y
        changed, x = (t if t.stride(-1) == 1 else t.contiguous() for t in (y, x))
        struct = split_work(segments, torch.get_num_threads()).struct
        self._ops.run(Op.LOW_RANK, [x], changed, segments=struct, weight=addressof(self.struct), wide=int(wide))
        return changed if changed is y else y.copy_(changed)

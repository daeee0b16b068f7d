"""How an adapter's share in one projection lies in memory, as `csrc/low_rank.hpp` reads it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.layout import POINTER
from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.memory import mapped
from quire_kernels.low_rank import ALIGNMENT, Delta, Deltas, checked

LANES = 16
INPUT_STEP = 32
TILE_RANKS = 32
"""Ranks that a tile takes at once; more are padded to a multiple of it (in bfloat16)."""


class Slice(ctypes.Structure):
    """See `csrc/low_rank.hpp`."""

    _fields_ = (
        ("b", POINTER),
        ("scale", POINTER),
        ("shift", POINTER),
        ("start", c_int64),
        ("stop", c_int64),
        ("first", c_int32),
        ("units", c_int32),
    )


class Share(ctypes.Structure):
    """See `csrc/low_rank.hpp`."""

    _fields_ = (("a", POINTER), ("slices", POINTER), ("panels", c_int32), ("num_slices", c_int32))


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """An adapter's share in a projection, and the memory it lies in."""

    share: Share
    kept: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Packing:
    """Packs shares for projections of one shape. slices: (start, stop) of the outputs of each matrix."""

    library: Library
    inputs: int
    slices: tuple[tuple[int, int], ...]
    dtype: torch.dtype

    def size(self, deltas: Deltas) -> int:
        """Bytes of a share. Raises ValueError for shapes that do not fit."""
        found = checked(deltas, self.inputs, self.slices)
        ranks = [self._ranks(delta) for delta in found]
        parts = zip(found, ranks, self.slices, strict=True)
        return self._a_bytes(ranks) + sum(sum(self._bytes(*part)) for part in parts)

    def pack(self, deltas: Deltas, memory: Tensor | None) -> Packed:
        """Into `memory`, uint8 of `size` bytes at a multiple of `ALIGNMENT`, or some of its own."""
        found = checked(deltas, self.inputs, self.slices)
        memory = mapped(self.size(deltas)) if memory is None else memory.zero_()
        if memory.data_ptr() % ALIGNMENT:
            raise ValueError(f"low_rank: memory must be aligned to {ALIGNMENT} bytes")
        every, slices, first = [self._ranks(delta) for delta in found], (Slice * len(found))(), 0
        a_at, at = memory.data_ptr(), memory.data_ptr() + self._a_bytes(every)
        for slice_, delta, ranks, (start, stop) in zip(slices, found, every, self.slices, strict=True):
            b_bytes, scale_bytes, shift_bytes = self._bytes(delta, ranks, (start, stop))
            slice_.start, slice_.stop, slice_.first, slice_.units = start, stop, first, ranks // self._per_unit
            if delta.a is not None and delta.b is not None:
                slice_.b = at
                self._lay(delta.a, first, _up(self.inputs, INPUT_STEP), a_at)
                self._lay(delta.b, 0, ranks, at)
            if delta.scale is not None:
                slice_.scale = _copied(delta.scale, at + b_bytes)
            if delta.shift is not None:
                slice_.shift = _copied(delta.shift, at + b_bytes + scale_bytes)
            first, at = first + ranks, at + b_bytes + scale_bytes + shift_bytes
        share = Share(a_at, ctypes.addressof(slices), self._panels(every), len(slices))
        return Packed(share, (memory, slices))

    @property
    def _per_unit(self) -> int:
        return 4 // self.dtype.itemsize

    def _ranks(self, delta: Delta) -> int:
        """The rank, padded."""
        rank = 0 if delta.a is None else len(delta.a)
        return _up(rank, self._per_unit if self._per_unit == 1 or rank <= TILE_RANKS else TILE_RANKS)

    def _panels(self, ranks: Sequence[int]) -> int:
        return -(-sum(ranks) // LANES)

    def _a_bytes(self, ranks: Sequence[int]) -> int:
        return self._panels(ranks) * LANES * _up(self.inputs, INPUT_STEP) * self.dtype.itemsize

    def _bytes(self, delta: Delta, ranks: int, outputs: tuple[int, int]) -> tuple[int, int, int]:
        """Of b, scale and shift."""
        width = outputs[1] - outputs[0]
        vector = _up(4 * width, ALIGNMENT)
        b = _up(width, LANES) * ranks * self.dtype.itemsize
        return b, 0 if delta.scale is None else vector, 0 if delta.shift is None else vector

    def _lay(self, matrix: Tensor, first: int, columns: int, at: int) -> None:
        """The rows of a matrix as lanes of panels that begin at an address and are `columns` elements long."""
        given = matrix.detach().to("cpu", matrix.dtype if matrix.dtype in DTYPES else self.dtype).contiguous()
        kinds = DTYPES[given.dtype], DTYPES[self.dtype]
        self.library.functions.quire_pack_lanes(
            *kinds, given.data_ptr(), *given.shape, first, columns // self._per_unit, at
        )


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _copied(vector: Tensor, at: int) -> int:
    given = vector.detach().to("cpu", torch.float32).contiguous()
    ctypes.memmove(at, given.data_ptr(), given.nbytes)
    return at

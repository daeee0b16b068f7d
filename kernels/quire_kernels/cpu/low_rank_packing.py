"""Packs an adapter's weights for one projection, in the memory layout that `csrc/low_rank/low_rank.hpp` reads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_int64
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quire_kernels.cpu.library import DTYPES, Library
from quire_kernels.cpu.linear.compressed import CompressedLayout, CompressedStruct, store
from quire_kernels.cpu.memory import map_zeros
from quire_kernels.cpu.structs import POINTER
from quire_kernels.low_rank import ALIGNMENT, Deltas, LowRankUpdate, checked

LANES = 16
INPUT_STEP = 32
TILE_RANKS = 32
"""Ranks that an AMX tile takes at once; in bfloat16, larger ranks are padded to a multiple of it."""


class SliceStruct(ctypes.Structure):
    """The C++ struct `Slice` in `csrc/low_rank/adapter_slots.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("b", CompressedStruct),
        ("scale", POINTER),
        ("shift", POINTER),
        ("start", c_int64),
        ("stop", c_int64),
        ("first", c_int32),
        ("units", c_int32),
    )


class PackedWeightsStruct(ctypes.Structure):
    """The C++ struct `PackedWeights` in `csrc/low_rank/adapter_slots.hpp`."""

    __slots__ = ()
    _fields_ = (
        ("a", CompressedStruct),
        ("slices", POINTER),
        ("begin", POINTER),
        ("bytes", c_int64),
        ("panels", c_int32),
        ("num_slices", c_int32),
        ("finite", c_int32),
        ("most_units", c_int32),
    )


READ_BEYOND = 1024
"""Bytes behind the weights that an AMX tile may read, and multiplies by zeros."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """An adapter's packed weights for a projection, and the memory they are in."""

    struct: PackedWeightsStruct
    kept: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Parts of the packed weights: a of all slices, then b, scale and shift of each slice. ranks: padded.

    behind: bytes after them.
    """

    deltas: tuple[LowRankUpdate, ...]
    ranks: tuple[int, ...]
    behind: int
    a: CompressedLayout
    b: tuple[CompressedLayout, ...]

    @property
    def panels(self) -> int:
        """Number of panels of a."""
        return _panels(self.ranks)

    @property
    def bytes(self) -> int:
        vectors = [vector for delta in self.deltas for vector in (delta.scale, delta.shift) if vector is not None]
        sizes = [self.a.bytes, *(b.bytes for b in self.b), *map(_vector_bytes, vectors)]
        return sum(sizes) + self.behind


@dataclass(frozen=True, slots=True)
class Packing:
    """Packs adapters for projections of one shape. slices: (start, stop) of the outputs of each fused matrix."""

    library: Library
    inputs: int
    slices: tuple[tuple[int, int], ...]
    dtype: torch.dtype

    def size(self, deltas: Deltas) -> int:
        """Bytes of the packed weights. Raises ValueError for shapes that do not fit."""
        return self._layout(deltas).bytes

    def pack(self, deltas: Deltas, memory: Tensor | None) -> Packed:
        """Pack into `memory`, uint8 of `size` bytes aligned to `ALIGNMENT`, or into newly allocated memory."""
        layout = self._layout(deltas)
        memory = map_zeros(layout.bytes) if memory is None else memory.zero_()
        if memory.data_ptr() % ALIGNMENT:
            raise ValueError(f"low_rank: memory must be aligned to {ALIGNMENT} bytes")
        begin, slices = memory.data_ptr(), (SliceStruct * len(self.slices))()
        a_staging, first, at = layout.a.staging, 0, begin + layout.a.bytes
        parts = zip(slices, layout.deltas, layout.ranks, layout.b, self.slices, strict=True)
        for slice_, delta, ranks, b, (start, stop) in parts:
            slice_.start, slice_.stop, slice_.first, slice_.units = start, stop, first, ranks // self._per_unit
            if delta.a is not None and delta.b is not None:
                self._write(delta.a, first, self._width, begin if a_staging is None else a_staging.data_ptr())
                b_staging = b.staging
                self._write(delta.b, 0, ranks, at if b_staging is None else b_staging.data_ptr())
                slice_.b = b.stored(self.library, at, b_staging)
            first, at = first + ranks, at + b.bytes
            if delta.scale is not None:
                slice_.scale, at = at, _copied(delta.scale, at)
            if delta.shift is not None:
                slice_.shift, at = at, _copied(delta.shift, at)
        a = layout.a.stored(self.library, begin, a_staging)
        finite, most_units = all(map(self._is_finite, layout.deltas)), max(layout.ranks, default=0) // self._per_unit
        sizes = layout.bytes, layout.panels, len(slices)
        struct = PackedWeightsStruct(a, ctypes.addressof(slices), begin, *sizes, finite, most_units)
        return Packed(struct, (memory, slices))

    def _layout(self, deltas: Deltas) -> _Layout:
        found = tuple(self._readable(delta) for delta in checked(deltas, self.inputs, self.slices))
        ranks = tuple(0 if delta.a is None else self._ranks(len(delta.a)) for delta in found)
        every_a = [delta.a for delta in found if delta.a is not None]
        vectors = self._width // self._per_unit
        a = store(self.library, every_a, _panels(ranks) * LANES * self._width, vectors, self.dtype)
        b = [
            store(
                self.library,
                [] if delta.b is None else [delta.b],
                _up(stop - start, LANES) * rank,
                rank // self._per_unit,
                self.dtype,
            )
            for delta, rank, (start, stop) in zip(found, ranks, self.slices, strict=True)
        ]
        behind = READ_BEYOND if self.library.isa.tiles and self.dtype == torch.bfloat16 else 0
        return _Layout(found, ranks, behind, a, tuple(b))

    def _is_finite(self, delta: LowRankUpdate) -> bool:
        """Whether zero times any of b is zero, and there is nothing but a and b."""
        if delta.scale is not None or delta.shift is not None:
            return False
        return delta.b is None or bool(delta.b.to(self.dtype).isfinite().all())

    @property
    def _per_unit(self) -> int:
        return 4 // self.dtype.itemsize

    @property
    def _width(self) -> int:
        """Number of inputs, padded."""
        return _up(self.inputs, INPUT_STEP)

    def _ranks(self, rank: int) -> int:
        """The rank, padded for this data type."""
        return _up(rank, self._per_unit if self._per_unit == 1 or rank <= TILE_RANKS else TILE_RANKS)

    def _readable(self, delta: LowRankUpdate) -> LowRankUpdate:
        """The matrices on the CPU, in a data type that C++ reads."""
        if delta.a is None or delta.b is None:
            return delta
        a, b = (
            matrix.detach().to("cpu", matrix.dtype if matrix.dtype in DTYPES else self.dtype).contiguous()
            for matrix in (delta.a, delta.b)
        )
        return delta._replace(a=a, b=b)

    def _write(self, matrix: Tensor, first: int, columns: int, at: int) -> None:
        """Write the rows of a matrix as lanes of panels at an address; panels are `columns` elements long."""
        kinds = DTYPES[matrix.dtype], DTYPES[self.dtype]
        self.library.functions.quire_pack_lanes(
            *kinds, matrix.data_ptr(), *matrix.shape, first, columns // self._per_unit, at
        )


def _panels(ranks: Sequence[int]) -> int:
    return -(-sum(ranks) // LANES)


def _vector_bytes(vector: Tensor) -> int:
    return _up(4 * len(vector), ALIGNMENT)


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _copied(vector: Tensor, at: int) -> int:
    """Copy to an address as float32; returns the next free address."""
    given = vector.detach().to("cpu", torch.float32).contiguous()
    ctypes.memmove(at, given.data_ptr(), given.nbytes)
    return at + _vector_bytes(vector)

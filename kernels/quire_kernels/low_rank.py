"""The op `low_rank`: applies the adapters in the slots of one projection, each to the tokens that use it.

A slot holds one adapter's weights on the device. Ranks may differ between adapters and between the matrices that a
projection fuses; none is padded to the largest rank (Punica, arXiv 2310.18547; S-LoRA, arXiv 2311.03285).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Alignment in bytes of the packed weights of each projection."""

Uses = Sequence[Sequence[tuple[int, float]]]
"""For each chunk of a step the (slot, weight) of every adapter that its request uses; empty for the base model."""


class LowRankUpdate(NamedTuple):
    """What one adapter does to one of the matrices that a projection fuses: y · scale + shift + x aᵀ bᵀ.

    a [rank, inputs] and b [outputs, rank], or neither; scale, shift [outputs] or None. A factor such as alpha / rank
    is already in b.
    """

    a: Tensor | None = None
    b: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None


Deltas = Sequence[LowRankUpdate | tuple[Tensor, Tensor] | None]
"""One update for each slice of a projection; None for a slice that the adapter does not change."""


@dataclass(frozen=True, slots=True, eq=False)
class HostSegments:
    """The arrays of `Segments` in CPU memory."""

    tokens: np.ndarray[Any, np.dtype[np.int32]]
    weights: np.ndarray[Any, np.dtype[np.float32]]
    starts: np.ndarray[Any, np.dtype[np.int32]]
    slots: np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Which tokens of a step use which slots.

    Segment s is the entries starts[s] … starts[s+1]-1: tokens (indices into the step) that use slots[s], each with its
    weight. Pass i, the segments passes[i] … passes[i+1]-1, applies the i-th adapter of each token, in ascending slot
    order. A token occurs at most once in a pass, and passes run one after another, so a token's result does not
    depend on which slots its adapters have. Tokens of the base model are in no segment.

    tokens: int32 [N]. weights: float32 [N]. starts: int32 [S + 1]. slots: int32 [S]; on the device, and in `host` in
    CPU memory. min_tokens: number of tokens that the step has at least. step_cache: data that implementations derive
    from the segments. capturable: whether the op `low_rank` is all that these adapters need.
    """

    tokens: Tensor
    weights: Tensor
    starts: Tensor
    slots: Tensor
    passes: tuple[int, ...]
    host: HostSegments
    min_tokens: int
    step_cache: dict[Any, Any] = field(default_factory=dict)
    capturable: bool = False

    def __len__(self) -> int:
        return len(self.host.slots)

    def slot_of_tokens(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        """Tokens, and the slot and weight of each; None if a token has several, or if they are not `capturable`."""
        if not self.capturable or len(self.passes) > 2:
            return None
        return self.host.tokens, np.repeat(self.host.slots, np.diff(self.host.starts)), self.host.weights

    @classmethod
    def from_uses(cls, uses: Uses, lens: Sequence[int], device: torch.device | str = "cpu") -> Segments:
        """uses: for each chunk, in the order of the step. lens: number of tokens of each chunk."""
        ends = np.cumsum(np.asarray(lens, np.int64))
        builder = _SegmentsBuilder()
        for number in range(max((len(chunk) for chunk in uses), default=0)):
            entries = [(chunk[number][0], i, chunk[number][1]) for i, chunk in enumerate(uses) if len(chunk) > number]
            for slot, i, weight in sorted(entries):
                builder.add(slot, np.arange(ends[i] - lens[i], ends[i], dtype=np.int32), weight)
            builder.end_pass()
        return builder.segments(device)

    def select(self, index: Tensor) -> Segments:
        """Segments of the rows index[0], index[1], … of the step, renumbered to positions in `index` (int64 [rows])."""
        rows = index.cpu().numpy()
        builder = _SegmentsBuilder()
        order = np.argsort(rows, kind="stable")
        for first, last in pairwise(self.passes):
            for s in range(first, last):
                entries = slice(self.host.starts[s], self.host.starts[s + 1])
                for token, weight in zip(self.host.tokens[entries], self.host.weights[entries], strict=True):
                    begin, end = np.searchsorted(rows[order], (token, token + 1))
                    if begin < end:
                        builder.add(int(self.host.slots[s]), order[begin:end].astype(np.int32), float(weight))
            builder.end_pass()
        return builder.segments(self.tokens.device)


@dataclass(frozen=True, slots=True, eq=False)
class TokenSlots(Segments):
    """The slot of each token, on the device alone: for captured steps, in which a token has at most one adapter.

    As segments they are empty. token_slots: int32 [T], -1 = none. token_weights: float32 [T]. max_rank: of an adapter.
    """

    token_slots: Tensor = field(kw_only=True)
    token_weights: Tensor = field(kw_only=True)
    max_rank: int = field(kw_only=True)

    @classmethod
    def on_device(cls, slots: Tensor, weights: Tensor, max_rank: int) -> TokenSlots:
        none = _SegmentsBuilder().segments("cpu")
        arrays = none.tokens, none.weights, none.starts, none.slots, none.passes, none.host
        return cls(*arrays, 0, token_slots=slots, token_weights=weights, max_rank=max_rank)


class SegmentsCache:
    """The segments of the last step, reused if the next step has the same ones. For one thread.

    Reused segments keep what implementations stored in `Segments.step_cache`.
    """

    def __init__(self) -> None:
        self._uses: Uses = ()
        self._lens: Sequence[int] = ()
        self._segments: Segments | None = None

    def get(
        self, uses: Uses, lens: Sequence[int], device: torch.device | str = "cpu", capturable: bool = False
    ) -> Segments:
        """Arguments as for `Segments.from_uses`. The sequences must not be modified later; `device` must not change
        between calls.
        """
        found = self._segments
        if found is None or uses != self._uses or lens != self._lens or found.capturable != capturable:
            found = replace(Segments.from_uses(uses, lens, device), capturable=capturable)
            self._uses, self._lens, self._segments = uses, lens, found
        return found


class _SegmentsBuilder:
    """Collects the entries of segments; consecutive entries of a pass with the same slot become one segment."""

    def __init__(self) -> None:
        self._tokens: list[np.ndarray[Any, np.dtype[np.int32]]] = []
        self._weights: list[float] = []
        self._starts, self._slots, self._passes = [0], list[int](), [0]

    def add(self, slot: int, tokens: np.ndarray[Any, np.dtype[np.int32]], weight: float) -> None:
        if len(self._slots) == self._passes[-1] or self._slots[-1] != slot:
            self._slots.append(slot)
            self._starts.append(self._starts[-1])
        self._tokens.append(tokens)
        self._weights.append(weight)
        self._starts[-1] += len(tokens)

    def end_pass(self) -> None:
        if len(self._slots) > self._passes[-1]:
            self._passes.append(len(self._slots))

    def segments(self, device: torch.device | str) -> Segments:
        lens = [len(tokens) for tokens in self._tokens]
        host = HostSegments(
            np.concatenate(self._tokens) if lens else np.zeros(0, np.int32),
            np.repeat(np.asarray(self._weights, np.float32), lens),
            np.asarray(self._starts, np.int32),
            np.asarray(self._slots, np.int32),
        )
        tokens, weights, starts, slots = (
            torch.from_numpy(array).to(device, non_blocking=True)
            for array in (host.tokens, host.weights, host.starts, host.slots)
        )
        min_tokens = int(host.tokens.max(initial=-1)) + 1
        return Segments(tokens, weights, starts, slots, tuple(self._passes), host, min_tokens)


class AdapterSlots(Protocol):
    """The adapters of one projection, by slot."""

    def size(self, deltas: Deltas) -> int:
        """Bytes that `pack` needs for these updates. Raises ValueError for shapes that do not fit the projection."""
        ...

    def pack(self, deltas: Deltas, memory: Tensor | None = None) -> Any:
        """Pack one adapter's updates so that `put` is quick. May be called from any thread.

        memory: uint8 of `size` bytes, aligned to `ALIGNMENT`, to pack into; None allocates it.
        Raises ValueError for shapes that do not fit the projection.
        """
        ...

    def put(self, slot: int, packed: Any) -> None:
        """Assign packed updates to a slot, between steps. Raises ValueError for an invalid slot."""
        ...

    def clear(self, slot: int) -> None:
        """Empty a slot, between steps. Entries that refer to an empty slot change nothing."""
        ...

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        """Apply the adapters to y in place and return y, as `LowRank` defines.

        y [T, outputs], in the slots' data type or float32; x [T, inputs], in the slots' data type.
        """
        ...


class LowRank(Protocol):
    """Create the adapter slots of one projection: y[t, slice] += w · x[t] aᵀ bᵀ for each adapter that uses token t.

    for each pass in order, each entry (t, w) of a segment, each slice, with d the `LowRankUpdate` of the segment's
    slot: y[t, slice] = y[t, slice] · (1 + w · (d.scale - 1)) + w · d.shift + (w · x[t] d.aᵀ) d.bᵀ
    Sums in float32; x d.aᵀ may be rounded to the data type; the result is rounded once. Missing parts of d are skipped.
    Rows in no segment stay bit-identical. slices: (start, stop) of the outputs of each fused matrix, contiguous.
    """

    def __call__(
        self,
        inputs: int,
        slices: Sequence[tuple[int, int]],
        slots: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> AdapterSlots: ...


def pack_all(updates: Sequence[tuple[AdapterSlots, Deltas]]) -> tuple[list[Any], int]:
    """Pack an adapter's updates for all projections into one block of memory, which is freed with the last of them.

    Returns the result of `AdapterSlots.pack` for each, and the total number of bytes. Raises ValueError for shapes
    that do not fit.
    """
    from quire_kernels.cpu.memory import map_zeros

    sizes = [-(-adapter_slots.size(deltas) // ALIGNMENT) * ALIGNMENT for adapter_slots, deltas in updates]
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    memory = map_zeros(sum(sizes))
    packed = [
        adapter_slots.pack(deltas, memory[end - size : end])
        for (adapter_slots, deltas), size, end in zip(updates, sizes, ends, strict=True)
    ]
    return packed, len(memory)


def checked(deltas: Deltas, inputs: int, slices: Sequence[tuple[int, int]]) -> list[LowRankUpdate]:
    """One `LowRankUpdate` for each slice. Raises ValueError, naming the expected shape, if one does not fit."""
    if len(deltas) != len(slices):
        raise ValueError(f"low_rank: expected {len(slices)} deltas, one for each slice, got {len(deltas)}")
    found = [LowRankUpdate() if delta is None else LowRankUpdate(*delta) for delta in deltas]
    for delta, (start, stop) in zip(found, slices, strict=True):
        if (delta.a is None) != (delta.b is None):
            raise ValueError("low_rank: a delta must have both a and b, or neither")
        if delta.a is not None and delta.b is not None:
            rank = delta.a.shape[0]
            _check_shape("a", delta.a, (rank, inputs))
            _check_shape("b", delta.b, (stop - start, rank))
        for name, vector in (("scale", delta.scale), ("shift", delta.shift)):
            if vector is not None:
                _check_shape(name, vector, (stop - start,))
    return found


def checked_slot(slot: int, slots: int) -> int:
    """Returns `slot`. Raises ValueError if it is out of range."""
    if not 0 <= slot < slots:
        raise ValueError(f"low_rank: slots are 0 to {slots - 1}, got {slot}")
    return slot


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"low_rank: {name} must be {list(shape)}, not {list(tensor.shape)}")

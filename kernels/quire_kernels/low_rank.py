"""The op `low_rank`: what adapters seated on one projection add to its outputs, each to the tokens that use it.

A seat is an adapter's place on the device. Ranks differ between adapters, and between the matrices that a projection
fuses; nothing is padded to the largest (arXiv 2310.18547, 2311.03285).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes; each packed projection begins at a multiple of it."""

Uses = Sequence[Sequence[tuple[int, float]]]
"""For each chunk of a step the (seat, weight) of every adapter that its request uses; none for the base model."""


class Delta(NamedTuple):
    """What one adapter does to one of the matrices that a projection fuses: y · scale + shift + x aᵀ bᵀ.

    a [rank, inputs] and b [outputs, rank] (or neither); scale, shift [outputs] or None. A factor such as alpha / rank
    is already in b.
    """

    a: Tensor | None = None
    b: Tensor | None = None
    scale: Tensor | None = None
    shift: Tensor | None = None


Deltas = Sequence[Delta | tuple[Tensor, Tensor] | None]
"""One for each slice of a projection; None where the adapter leaves it alone."""


@dataclass(frozen=True, slots=True, eq=False)
class HostSegments:
    """The arrays of `Segments` on the host."""

    tokens: np.ndarray[Any, np.dtype[np.int32]]
    weights: np.ndarray[Any, np.dtype[np.float32]]
    starts: np.ndarray[Any, np.dtype[np.int32]]
    seats: np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Which tokens of a step use which seats.

    Segment s is the entries starts[s] … starts[s+1]-1: tokens (indices into the step's) that use seats[s], each with
    its weight. Segments turns[i] … turns[i+1]-1 are the i-th adapters of their tokens, by rising seat: within a turn no
    token stands twice, and turns follow each other, so that what a token gets does not depend on which seats its
    adapters have. Tokens of the base model stand nowhere.

    tokens: int32 [N]. weights: float32 [N]. starts: int32 [S + 1]. seats: int32 [S]; all on the device, `host` on the
    host. reach: all tokens are below it. memo: implementations may keep here what they derive from a step.
    """

    tokens: Tensor
    weights: Tensor
    starts: Tensor
    seats: Tensor
    turns: tuple[int, ...]
    host: HostSegments
    reach: int
    memo: dict[Any, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        """Segments."""
        return len(self.host.seats)

    @classmethod
    def of(cls, uses: Uses, lens: Sequence[int], device: torch.device | str = "cpu") -> Segments:
        """uses: of each chunk, in the order of the step. lens: tokens of each chunk."""
        ends = np.cumsum(np.asarray(lens, np.int64))
        made = _Made()
        for turn in range(max((len(chunk) for chunk in uses), default=0)):
            taking = [(chunk[turn][0], i, chunk[turn][1]) for i, chunk in enumerate(uses) if len(chunk) > turn]
            for seat, i, weight in sorted(taking):
                made.add(seat, np.arange(ends[i] - lens[i], ends[i], dtype=np.int32), weight)
            made.end_turn()
        return made.segments(device)

    def select(self, index: Tensor) -> Segments:
        """Segments of the rows index[0], index[1], … of the step, by their place in `index` (int64 [rows])."""
        rows = index.cpu().numpy()
        made = _Made()
        order = np.argsort(rows, kind="stable")
        for first, last in pairwise(self.turns):
            for s in range(first, last):
                mine = slice(self.host.starts[s], self.host.starts[s + 1])
                for token, weight in zip(self.host.tokens[mine], self.host.weights[mine], strict=True):
                    begin, end = np.searchsorted(rows[order], (token, token + 1))
                    if begin < end:
                        made.add(int(self.host.seats[s]), order[begin:end].astype(np.int32), float(weight))
            made.end_turn()
        return made.segments(self.tokens.device)


class LastSegments:
    """Segments of step after step: what most steps have in common with the one before is not made again.

    For one thread. What implementations keep in `Segments.memo` is kept with them.
    """

    def __init__(self) -> None:
        self._uses: Uses = ()
        self._lens: Sequence[int] = ()
        self._made: Segments | None = None

    def of(self, uses: Uses, lens: Sequence[int], device: torch.device | str = "cpu") -> Segments:
        """As `Segments.of`; the sequences must not change afterwards. The device is the same at every call."""
        if self._made is None or uses != self._uses or lens != self._lens:
            self._uses, self._lens, self._made = uses, lens, Segments.of(uses, lens, device)
        return self._made


class _Made:
    """Segments in the making: stretches of one turn with the same seat are one segment."""

    def __init__(self) -> None:
        self._tokens: list[np.ndarray[Any, np.dtype[np.int32]]] = []
        self._weights: list[float] = []
        self._starts, self._seats, self._turns = [0], list[int](), [0]

    def add(self, seat: int, tokens: np.ndarray[Any, np.dtype[np.int32]], weight: float) -> None:
        if len(self._seats) == self._turns[-1] or self._seats[-1] != seat:
            self._seats.append(seat)
            self._starts.append(self._starts[-1])
        self._tokens.append(tokens)
        self._weights.append(weight)
        self._starts[-1] += len(tokens)

    def end_turn(self) -> None:
        if len(self._seats) > self._turns[-1]:
            self._turns.append(len(self._seats))

    def segments(self, device: torch.device | str) -> Segments:
        lens = [len(tokens) for tokens in self._tokens]
        host = HostSegments(
            np.concatenate(self._tokens) if lens else np.zeros(0, np.int32),
            np.repeat(np.asarray(self._weights, np.float32), lens),
            np.asarray(self._starts, np.int32),
            np.asarray(self._seats, np.int32),
        )
        tokens, weights, starts, seats = (
            torch.from_numpy(array).to(device, non_blocking=True)
            for array in (host.tokens, host.weights, host.starts, host.seats)
        )
        reach = int(host.tokens.max(initial=-1)) + 1
        return Segments(tokens, weights, starts, seats, tuple(self._turns), host, reach)


class Seated(Protocol):
    """The adapters that sit on one projection."""

    def size(self, deltas: Deltas) -> int:
        """Bytes that `pack` of these needs. Raises ValueError for shapes that do not fit the projection."""
        ...

    def pack(self, deltas: Deltas, memory: Tensor | None = None) -> Any:
        """One adapter's share as it can be seated at once; from any thread, as often as wanted.

        memory: uint8 of `size` bytes, aligned to `ALIGNMENT`, to lie in; None for memory of its own.
        Raises ValueError for shapes that do not fit the projection.
        """
        ...

    def put(self, seat: int, packed: Any) -> None:
        """What `pack` gave takes a seat, between steps. Raises ValueError for a seat that there is not."""
        ...

    def clear(self, seat: int) -> None:
        """Nobody sits there, between steps: entries that name the seat change nothing."""
        ...

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        """Change y in place and give it. See `LowRank`.

        y [T, outputs], of the seats' data type or float32; x [T, inputs], of the seats' data type.
        """
        ...


class LowRank(Protocol):
    """Make the seats of one projection: y[t, slice] += w · x[t] aᵀ bᵀ for each adapter that uses token t.

    for the turns in order, an entry (t, w) of a segment with a seat, each slice, d its `Delta` there:
    y[t, slice] = y[t, slice] · (1 + w · (d.scale - 1)) + w · d.shift + (w · x[t] d.aᵀ) d.bᵀ
    sums in float32; x d.aᵀ may be rounded to the data type; the whole is rounded once. What d lacks is left out. Rows
    in no segment stay as they are, to the last bit. slices: (start, stop) of the outputs of each matrix, side by side.
    """

    def __call__(
        self,
        inputs: int,
        slices: Sequence[tuple[int, int]],
        seats: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> Seated:
        """See the class."""
        ...


def pack_all(shares: Sequence[tuple[Seated, Deltas]]) -> tuple[list[Any], int]:
    """Pack an adapter's shares in all projections side by side, in one piece of memory that is freed with the last.

    What `Seated.pack` gives for each, and how many bytes they need together. Raises ValueError for shapes that do not
    fit.
    """
    from quire_kernels.cpu.memory import mapped

    sizes = [-(-seated.size(deltas) // ALIGNMENT) * ALIGNMENT for seated, deltas in shares]
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    memory = mapped(sum(sizes))
    packed = [
        seated.pack(deltas, memory[end - size : end])
        for (seated, deltas), size, end in zip(shares, sizes, ends, strict=True)
    ]
    return packed, len(memory)


def checked(deltas: Deltas, inputs: int, slices: Sequence[tuple[int, int]]) -> list[Delta]:
    """One `Delta` for each slice. Raises ValueError, saying which shape was expected, if one does not fit."""
    if len(deltas) != len(slices):
        raise ValueError(f"low_rank: {len(slices)} deltas were expected, one for each slice, not {len(deltas)}")
    found = [Delta() if delta is None else Delta(*delta) for delta in deltas]
    for delta, (start, stop) in zip(found, slices, strict=True):
        if (delta.a is None) != (delta.b is None):
            raise ValueError("low_rank: a and b come together")
        if delta.a is not None and delta.b is not None:
            rank = delta.a.shape[0]
            _demand("a", delta.a, (rank, inputs))
            _demand("b", delta.b, (stop - start, rank))
        for name, vector in (("scale", delta.scale), ("shift", delta.shift)):
            if vector is not None:
                _demand(name, vector, (stop - start,))
    return found


def checked_seat(seat: int, seats: int) -> int:
    """The seat. Raises ValueError if there is no such one."""
    if not 0 <= seat < seats:
        raise ValueError(f"low_rank: seats are 0 to {seats - 1}, not {seat}")
    return seat


def _demand(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"low_rank: {name} must be {list(shape)}, not {list(tensor.shape)}")

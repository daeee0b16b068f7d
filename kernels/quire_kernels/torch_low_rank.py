"""The op `low_rank` in plain torch: a few products for each segment, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.low_rank import Delta, Deltas, Segments, checked, checked_seat

_PARTS = ("a", "b", "scale", "shift")


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """One adapter's share in one projection.

    a: [sum of the ranks, inputs], of all slices. pieces: what begins at which row of it, one for each slice.
    """

    a: Tensor
    pieces: tuple[tuple[int, Delta], ...]

    def to(self, device: torch.device) -> Share:
        """It, on a device."""

        def moved(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.to(device, non_blocking=True)

        return Share(self.a.to(device, non_blocking=True), tuple((at, Delta(*map(moved, d))) for at, d in self.pieces))


class Seats:
    """See `low_rank.Seated`. What is packed lies on the host until it takes a seat."""

    def __init__(
        self, inputs: int, slices: Sequence[tuple[int, int]], seats: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._inputs, self._slices, self._dtype, self._device = inputs, tuple(slices), dtype, device
        self._seated: list[Share | None] = [None] * seats

    def size(self, deltas: Deltas) -> int:
        """See `low_rank.Seated`."""
        return sum(
            part.numel() * self._kind(name).itemsize
            for delta in checked(deltas, self._inputs, self._slices)
            for name, part in zip(_PARTS, delta, strict=True)
            if part is not None
        )

    def _kind(self, part: str) -> torch.dtype:
        return torch.float32 if part in ("scale", "shift") else self._dtype

    def pack(self, deltas: Deltas, memory: Tensor | None = None) -> Share:
        """See `low_rank.Seated`."""
        found = checked(deltas, self._inputs, self._slices)
        pin = self._device.type == "cuda"
        into = _Memory(torch.empty(self.size(deltas), dtype=torch.uint8, pin_memory=pin) if memory is None else memory)
        vectors = [(into.keep(d.scale, torch.float32), into.keep(d.shift, torch.float32)) for d in found]
        none = torch.empty(0, self._inputs, dtype=self._dtype)
        a = into.keep(torch.cat([none if d.a is None else d.a.to("cpu", self._dtype) for d in found]), self._dtype)
        pieces, at = [], 0
        for delta, (scale, shift) in zip(found, vectors, strict=True):
            pieces.append((at, Delta(None, into.keep(delta.b, self._dtype), scale, shift)))
            at += 0 if delta.a is None else len(delta.a)
        return Share(none if a is None else a, tuple(pieces))

    def put(self, seat: int, packed: Share) -> None:
        """See `low_rank.Seated`."""
        self._seated[checked_seat(seat, len(self._seated))] = packed.to(self._device)

    def clear(self, seat: int) -> None:
        """See `low_rank.Seated`."""
        self._seated[checked_seat(seat, len(self._seated))] = None

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        """See `low_rank.LowRank`."""
        starts = segments.host.starts
        for s, seat in enumerate(segments.host.seats.tolist()):  # turns follow each other
            share = self._seated[seat]
            if share is None:
                continue
            mine = slice(int(starts[s]), int(starts[s + 1]))
            tokens, weights = segments.tokens[mine], segments.weights[mine, None]
            h = (x.index_select(0, tokens) @ share.a.T).float().mul_(weights)
            for (at, delta), (start, stop) in zip(share.pieces, self._slices, strict=True):
                if any(part is not None for part in delta):
                    part = y[:, start:stop]
                    part.index_copy_(0, tokens.long(), _changed(part, tokens, h, at, delta, weights))
        return y


def _changed(part: Tensor, tokens: Tensor, h: Tensor, at: int, delta: Delta, weights: Tensor) -> Tensor:
    """What becomes of these rows of a slice of y: [tokens, width], in its data type."""
    rows = part.index_select(0, tokens).float()
    if delta.scale is not None:
        rows.mul_((delta.scale - 1) * weights + 1)
    if delta.shift is not None:
        rows.add_(delta.shift * weights)
    if delta.b is not None:
        rows.add_(h[:, at : at + delta.b.shape[1]].to(delta.b.dtype) @ delta.b.T)
    return rows.to(part.dtype)


class _Memory:
    """Tensors laid one behind the other into memory of bytes."""

    def __init__(self, memory: Tensor) -> None:
        self._free = memory

    def keep(self, tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
        if tensor is None:
            return None
        size = tensor.numel() * dtype.itemsize
        kept, self._free = self._free[:size].view(dtype).view(tensor.shape), self._free[size:]
        return kept.copy_(tensor)


def low_rank(
    inputs: int,
    slices: Sequence[tuple[int, int]],
    seats: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Seats:
    """See `low_rank.LowRank`."""
    return Seats(inputs, slices, seats, dtype, torch.device(device))

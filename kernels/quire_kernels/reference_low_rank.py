"""The op `low_rank` in plain torch, written to be read: what all other implementations are tested against."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire_kernels.low_rank import Delta, Deltas, Segments, checked, checked_seat


class Seats:
    """See `low_rank.Seated`. What is packed is the deltas as they were given, in float32."""

    def __init__(
        self, inputs: int, slices: Sequence[tuple[int, int]], seats: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._inputs, self._slices, self._dtype, self._device = inputs, tuple(slices), dtype, device
        self._seated: list[list[Delta] | None] = [None] * seats

    def size(self, deltas: Deltas) -> int:
        """Nothing: it has memory of its own."""
        checked(deltas, self._inputs, self._slices)
        return 0

    def pack(self, deltas: Deltas, memory: Tensor | None = None) -> list[Delta]:
        """See `low_rank.Seated`. Numbers are rounded to the data type, except for scales and shifts."""
        return [
            Delta(*(None if part is None else part.to(self._device, kind).float() for part, kind in self._parts(delta)))
            for delta in checked(deltas, self._inputs, self._slices)
        ]

    def _parts(self, delta: Delta) -> list[tuple[Tensor | None, torch.dtype]]:
        return list(zip(delta, (self._dtype, self._dtype, torch.float32, torch.float32), strict=True))

    def put(self, seat: int, packed: list[Delta]) -> None:
        """See `low_rank.Seated`."""
        self._seated[checked_seat(seat, len(self._seated))] = packed

    def clear(self, seat: int) -> None:
        """See `low_rank.Seated`."""
        self._seated[checked_seat(seat, len(self._seated))] = None

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        """See `low_rank.LowRank`."""
        starts = segments.starts.tolist()
        for s, seat in enumerate(segments.seats.tolist()):  # turns follow each other
            for e in range(starts[s], starts[s + 1]):
                token = int(segments.tokens[e])
                for delta, (start, stop) in zip(self._seated[seat] or (), self._slices, strict=False):
                    row = y[token, start:stop]
                    row.copy_(_changed(row.float(), x[token].float(), delta, float(segments.weights[e])))
        return y


def _changed(y: Tensor, x: Tensor, delta: Delta, weight: float) -> Tensor:
    if delta.scale is not None:
        y = y * (1 + weight * (delta.scale - 1))
    if delta.shift is not None:
        y = y + weight * delta.shift
    if delta.a is not None and delta.b is not None:
        y = y + delta.b @ (delta.a @ x * weight)
    return y


def low_rank(
    inputs: int,
    slices: Sequence[tuple[int, int]],
    seats: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Seats:
    """See `low_rank.LowRank`."""
    return Seats(inputs, slices, seats, dtype, torch.device(device))

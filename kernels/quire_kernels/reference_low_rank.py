"""The op `low_rank` in plain torch, written to be read: all other implementations are tested against it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from quire_kernels.low_rank import Deltas, LowRankUpdate, Segments, checked, checked_slot


class ReferenceAdapterSlots:
    """Reference implementation of `low_rank.AdapterSlots`. Packed updates are the given ones, in float32."""

    def __init__(
        self, inputs: int, slices: Sequence[tuple[int, int]], slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._inputs, self._slices, self._dtype, self._device = inputs, tuple(slices), dtype, device
        self._adapter_slots: list[list[LowRankUpdate] | None] = [None] * slots

    def size(self, deltas: Deltas) -> int:
        """Always 0: packed updates are ordinary tensors."""
        checked(deltas, self._inputs, self._slices)
        return 0

    def pack(self, deltas: Deltas, memory: Tensor | None = None) -> list[LowRankUpdate]:
        """a and b are first rounded to the data type; scales and shifts are not."""
        return [
            LowRankUpdate(
                *(None if part is None else part.to(self._device, kind).float() for part, kind in self._parts(delta))
            )
            for delta in checked(deltas, self._inputs, self._slices)
        ]

    def _parts(self, delta: LowRankUpdate) -> list[tuple[Tensor | None, torch.dtype]]:
        return list(zip(delta, (self._dtype, self._dtype, torch.float32, torch.float32), strict=True))

    def put(self, slot: int, packed: list[LowRankUpdate]) -> None:
        self._adapter_slots[checked_slot(slot, len(self._adapter_slots))] = packed

    def clear(self, slot: int) -> None:
        self._adapter_slots[checked_slot(slot, len(self._adapter_slots))] = None

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        starts = segments.starts.tolist()
        for s, slot in enumerate(segments.slots.tolist()):  # passes run in order
            for e in range(starts[s], starts[s + 1]):
                token = int(segments.tokens[e])
                for delta, (start, stop) in zip(self._adapter_slots[slot] or (), self._slices, strict=False):
                    row = y[token, start:stop]
                    row.copy_(_changed(row.float(), x[token].float(), delta, float(segments.weights[e])))
        return y


def _changed(y: Tensor, x: Tensor, delta: LowRankUpdate, weight: float) -> Tensor:
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
    slots: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> ReferenceAdapterSlots:
    return ReferenceAdapterSlots(inputs, slices, slots, dtype, torch.device(device))

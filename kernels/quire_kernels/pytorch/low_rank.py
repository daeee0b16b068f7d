"""The op `low_rank` in plain torch: a few matrix products for each segment, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_kernels.low_rank import Deltas, LowRankUpdate, Segments, checked, checked_slot

_PARTS = ("a", "b", "scale", "shift")


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeights:
    """One adapter's weights for one projection.

    a: [sum of the ranks, inputs], of all slices. slices: for each slice its first row in `a`, and the update without a.
    """

    a: Tensor
    slices: tuple[tuple[int, LowRankUpdate], ...]

    def to(self, device: torch.device) -> PackedWeights:
        """A copy on `device`."""

        def moved(part: Tensor | None) -> Tensor | None:
            return None if part is None else part.to(device, non_blocking=True)

        return PackedWeights(
            self.a.to(device, non_blocking=True), tuple((at, LowRankUpdate(*map(moved, d))) for at, d in self.slices)
        )


class TorchAdapterSlots:
    """`low_rank.AdapterSlots` in plain torch. Packed weights are in CPU memory until they are assigned to a slot."""

    def __init__(
        self, inputs: int, slices: Sequence[tuple[int, int]], slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._inputs, self._slices, self._dtype, self._device = inputs, tuple(slices), dtype, device
        self._adapter_slots: list[PackedWeights | None] = [None] * slots

    def size(self, deltas: Deltas) -> int:
        return sum(
            part.numel() * self._kind(name).itemsize
            for delta in checked(deltas, self._inputs, self._slices)
            for name, part in zip(_PARTS, delta, strict=True)
            if part is not None
        )

    def _kind(self, part: str) -> torch.dtype:
        return torch.float32 if part in ("scale", "shift") else self._dtype

    def pack(self, deltas: Deltas, memory: Tensor | None = None) -> PackedWeights:
        found = checked(deltas, self._inputs, self._slices)
        pin = self._device.type == "cuda"
        block = _Memory(torch.empty(self.size(deltas), dtype=torch.uint8, pin_memory=pin) if memory is None else memory)
        vectors = [(block.keep(d.scale, torch.float32), block.keep(d.shift, torch.float32)) for d in found]
        none = torch.empty(0, self._inputs, dtype=self._dtype)
        a = block.keep(torch.cat([none if d.a is None else d.a.to("cpu", self._dtype) for d in found]), self._dtype)
        slices, at = [], 0
        for delta, (scale, shift) in zip(found, vectors, strict=True):
            slices.append((at, LowRankUpdate(None, block.keep(self._laid_out(delta.b), self._dtype), scale, shift)))
            at += 0 if delta.a is None else len(delta.a)
        return PackedWeights(none if a is None else a, tuple(slices))

    def _laid_out(self, b: Tensor | None) -> Tensor | None:
        """b [outputs, rank] as it lies in memory."""
        return b

    def put(self, slot: int, packed: PackedWeights) -> None:
        self._adapter_slots[checked_slot(slot, len(self._adapter_slots))] = packed.to(self._device)

    def clear(self, slot: int) -> None:
        self._adapter_slots[checked_slot(slot, len(self._adapter_slots))] = None

    def is_empty(self, slot: int, runtime_index: int = 0) -> bool:
        """Whether no adapter in this slot changes the projection. runtime_index: its own, where there are several."""
        return self._adapter_slots[slot] is None

    def __call__(self, y: Tensor, x: Tensor, segments: Segments) -> Tensor:
        starts = segments.host.starts
        for s, slot in enumerate(segments.host.slots.tolist()):  # passes run in order
            weights_of_slot = self._adapter_slots[slot]
            if weights_of_slot is None:
                continue
            entries = slice(int(starts[s]), int(starts[s + 1]))
            tokens, weights = segments.tokens[entries], segments.weights[entries, None]
            h = (x.index_select(0, tokens) @ weights_of_slot.a.T).float().mul_(weights)
            for (at, delta), (start, stop) in zip(weights_of_slot.slices, self._slices, strict=True):
                if any(part is not None for part in delta):
                    part = y[:, start:stop]
                    part.index_copy_(0, tokens.long(), _updated(part, tokens, h, at, delta, weights))
        return y


def _updated(part: Tensor, tokens: Tensor, h: Tensor, at: int, delta: LowRankUpdate, weights: Tensor) -> Tensor:
    """New values of these rows of a slice of y: [tokens, width], in y's data type."""
    rows = part.index_select(0, tokens).float()
    if delta.scale is not None:
        rows.mul_((delta.scale - 1) * weights + 1)
    if delta.shift is not None:
        rows.add_(delta.shift * weights)
    if delta.b is not None:
        rows.add_(h[:, at : at + delta.b.shape[1]].to(delta.b.dtype) @ delta.b.T)
    return rows.to(part.dtype)


class _Memory:
    """Places tensors one after another in a block of bytes."""

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
    slots: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> TorchAdapterSlots:
    return TorchAdapterSlots(inputs, slices, slots, dtype, torch.device(device))

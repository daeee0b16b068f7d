"""StateCache: the tensors that hold the state of all seqs and of checkpoints, one slot for each.

The engine's slot pool (`quire.engine.recurrent`) decides which slot belongs to which seq.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from quire_models.parts.state import StateShape


@dataclass(frozen=True)
class StateCache:
    """State of each block: tensors[i] has a tensor [num_slots, *shape] for each `StateTensor` of block i, () if it has
    none.
    """

    tensors: tuple[tuple[Tensor, ...], ...]

    @classmethod
    def allocate(
        cls,
        shapes: Sequence[StateShape | None],
        num_slots: int,
        dtype: torch.dtype,
        device: torch.device | str,
        pin_memory: bool = False,
    ) -> StateCache:
        """A cache of zeros. shapes: of each block. dtype: of tensors that are not kept in float32."""
        return cls(
            tuple(
                tuple(
                    torch.zeros(
                        num_slots,
                        *tensor.shape,
                        dtype=torch.float32 if tensor.float32 else dtype,
                        device=device,
                        pin_memory=pin_memory,
                    )
                    for tensor in (shape.tensors if shape else ())
                )
                for shape in shapes
            )
        )

    @staticmethod
    def slot_bytes(shapes: Sequence[StateShape | None], dtype: torch.dtype) -> int:
        """Bytes of one slot over all blocks."""
        return sum(
            math.prod(tensor.shape) * (4 if tensor.float32 else dtype.itemsize)
            for shape in shapes
            if shape is not None
            for tensor in shape.tensors
        )

    @property
    def flat(self) -> tuple[Tensor, ...]:
        """The tensors of all blocks."""
        return tuple(tensor for of_block in self.tensors for tensor in of_block)

    def clear(self, slots: Sequence[int]) -> None:
        """Zero these slots, which seqs begin with."""
        if slots and self.flat:
            index = torch.tensor(slots).to(self.flat[0].device, non_blocking=True)
            for tensor in self.flat:
                tensor.index_fill_(0, index, 0)

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slots within the cache: (source, destination) pairs; all sources are read before any destination is
        written.
        """
        self.swap(self, self, pairs)

    @staticmethod
    def swap(source: StateCache, destination: StateCache, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy slots from one cache to another, possibly on another device: (source, destination) pairs."""
        if not pairs or not source.flat:
            return
        places = torch.tensor(pairs, dtype=torch.int64).T.contiguous()
        read, written = (
            index.to(cache.flat[0].device, non_blocking=True)
            for index, cache in zip(places, (source, destination), strict=True)
        )
        for from_tensor, to_tensor in zip(source.flat, destination.flat, strict=True):
            to_tensor.index_copy_(0, written, from_tensor.index_select(0, read).to(to_tensor.device))

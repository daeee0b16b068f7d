"""Inputs of the op `low_rank`: adapters, slots, and which tokens use which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire_kernels.low_rank import LowRankUpdate, pack_all

FLOATS = (torch.float32, torch.bfloat16)


TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


SLOTS = 6


LowRank = Callable[..., Any]


Uses = Sequence[tuple[tuple[int, float], ...]]


def close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    torch.testing.assert_close(got.float(), want.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


# --- problems --------------------------------------------------------------------------------------------

SHAPES = {
    "fused": (64, (48, 16, 32)),
    "odd": (33, (20, 10, 11)),
    "single": (96, (33,)),
    "wide": (1536, (64, 200)),
    "one": (1, (1,)),
}


RANKS: dict[str, tuple[int, ...]] = {
    "1": (1,),
    "3": (3,),
    "8": (8,),
    "16": (16,),
    "64": (64,),
    "mixed": (1, 64, 3, 16, 33, 8),
}


def deltas(rank: int, inputs: int, sizes: Sequence[int]) -> list[LowRankUpdate | None]:
    """One adapter; every third matrix is left alone if there are several."""
    return [
        LowRankUpdate(torch.randn(rank, inputs) / inputs**0.5, torch.randn(size, rank) / rank**0.5)
        if (i + rank) % 3 or len(sizes) == 1
        else None
        for i, size in enumerate(sizes)
    ]


def adapters_of(shape: str, ranks: str) -> list[list[LowRankUpdate | None]]:
    inputs, sizes = SHAPES[shape]
    return [deltas(RANKS[ranks][i % len(RANKS[ranks])], inputs, sizes) for i in range(SLOTS - 1)]


def slices_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return [(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]


def adapter_slots(
    low_rank: LowRank, shape: str, dtype: torch.dtype, adapters: Sequence[Any], at: Sequence[int] = ()
) -> Any:
    """Slots with the adapters in them, in order or at the indices `at`."""
    inputs, sizes = SHAPES[shape]
    slots = low_rank(inputs, slices_of(sizes), SLOTS, dtype)
    for slot, packed in zip(at or range(SLOTS), pack_all([(slots, adapter) for adapter in adapters])[0], strict=False):
        slots.put(slot, packed)
    return slots


def tensors(shape: str, dtype: torch.dtype, tokens: int) -> tuple[Tensor, Tensor]:
    inputs, sizes = SHAPES[shape]
    return torch.randn(tokens, sum(sizes)).to(dtype), torch.randn(tokens, inputs).to(dtype)


def popular(how: str) -> Uses:
    """Which adapter each of some requests uses, −1 for none."""
    drawn = np.random.default_rng(0)
    slots = {
        "all the same": [2] * 9,
        "all different": [4, 1, 0, 3, 2],
        "uniform": drawn.integers(-1, SLOTS - 1, 17).tolist(),
        "zipf": [min(int(slot) - 1, SLOTS - 2) for slot in drawn.zipf(1.5, 17)],
        "base only": [-1] * 4,
        "slots that are free": [SLOTS - 1, 0, SLOTS - 1],
    }[how]
    return [((slot, 1.0),) if slot >= 0 else () for slot in slots]


POPULAR = ["all the same", "all different", "uniform", "zipf", "base only", "slots that are free"]


SEVERAL: Uses = [
    ((0, 0.5), (3, 2.0)),
    (),
    ((3, 1.0),),
    ((2, -1.0), (0, 1.0), (4, 0.25)),
    ((1, 0.0),),
    ((4, 1.0), (4, 1.0)),
]


LENS = (1, 3, 1, 34, 1, 70, 1, 2, 1, 5, 1, 1, 33, 1, 1, 1, 8)

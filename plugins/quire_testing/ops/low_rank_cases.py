"""Inputs of the operation `low_rank` for `check_op`: adapters are put into slots, then tokens use the slots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor

from quire_kernels.low_rank import LowRank, LowRankUpdate, Segments, pack_all

if TYPE_CHECKING:
    from quire_testing.ops.cases import RandomInputs


def low_rank(draw: RandomInputs) -> Iterator[tuple[Any, ...]]:
    """inputs, slices, slots, dtype, device, updates, y, x, segments; updates of each slot but the last.

    Ranks differ, matrices are left out, scaled and shifted; some requests use several adapters, and some none.
    """
    uses = [((0, 1.0),), (), ((2, 0.5), (0, -1.0)), ((1, 1.0),), ((0, 2.0),), ((3, 1.0),)]
    for inputs, sizes in ((64, (32, 16, 16)), (33, (20, 11)), (70, (48,))):
        edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        slices = tuple(pairwise(edges))
        updates = [_deltas(draw, ranks, inputs, sizes) for ranks in ((16, 16, 16), (1, 0, 3), (8, 64, 5))]
        updates[1][-1] = LowRankUpdate(scale=draw(sizes[-1]), shift=draw(sizes[-1]))
        for lens in ((1, 1, 1, 1, 1, 1), (3, 1, 40, 2, 35, 1)):
            y, x = draw(sum(lens), edges[-1]), draw(sum(lens), inputs)
            segments = Segments.from_uses(uses, lens, draw.device)
            yield inputs, slices, 4, draw.dtype, draw.device, updates, y, x, segments


def _deltas(draw: RandomInputs, ranks: Sequence[int], inputs: int, sizes: Sequence[int]) -> list[LowRankUpdate | None]:
    return [
        LowRankUpdate(draw(rank, inputs, scale=inputs**-0.5), draw(size, rank, scale=rank**-0.5)) if rank else None
        for rank, size in zip(ranks, sizes, strict=False)
    ]


def run_low_rank(function: LowRank, case: tuple[Any, ...]) -> Tensor:
    """The result of `low_rank` for a case: the updates are packed together, and put into the first slots."""
    *shape, updates, y, x, segments = case
    slots = function(*shape)
    for slot, packed in enumerate(pack_all([(slots, update) for update in updates])[0]):
        slots.put(slot, packed)
    return slots(y, x, segments)

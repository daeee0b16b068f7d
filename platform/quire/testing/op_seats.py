"""Inputs on which implementations of `low_rank` are tried, and how: adapters take seats, then tokens use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torch import Tensor

from quire_kernels.low_rank import Delta, LowRank, Segments, pack_all

if TYPE_CHECKING:
    from quire.testing.op_cases import Draw


def low_rank(draw: Draw) -> Iterator[tuple[Any, ...]]:
    """inputs, slices, seats, dtype, device, shares, y, x, segments: one share for each seat but the last.

    Ranks differ, matrices are left out, scaled and shifted; some requests use several adapters, and some none.
    """
    uses = [((0, 1.0),), (), ((2, 0.5), (0, -1.0)), ((1, 1.0),), ((0, 2.0),), ((3, 1.0),)]
    for inputs, sizes in ((64, (32, 16, 16)), (33, (20, 11)), (70, (48,))):
        edges = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        slices = tuple(pairwise(edges))
        shares = [_deltas(draw, ranks, inputs, sizes) for ranks in ((16, 16, 16), (1, 0, 3), (8, 64, 5))]
        shares[1][-1] = Delta(scale=draw(sizes[-1]), shift=draw(sizes[-1]))
        for lens in ((1, 1, 1, 1, 1, 1), (3, 1, 40, 2, 35, 1)):
            y, x = draw(sum(lens), edges[-1]), draw(sum(lens), inputs)
            segments = Segments.of(uses, lens, draw.device)
            yield inputs, slices, 4, draw.dtype, draw.device, shares, y, x, segments


def _deltas(draw: Draw, ranks: Sequence[int], inputs: int, sizes: Sequence[int]) -> list[Delta | None]:
    return [
        Delta(draw(rank, inputs, scale=inputs**-0.5), draw(size, rank, scale=rank**-0.5)) if rank else None
        for rank, size in zip(ranks, sizes, strict=False)
    ]


def seated_answer(function: LowRank, case: tuple[Any, ...]) -> Tensor:
    """What `low_rank` makes of its case: the shares are packed together, and take the first seats."""
    *shape, shares, y, x, segments = case
    seats = function(*shape)
    for seat, packed in enumerate(pack_all([(seats, share) for share in shares])[0]):
        seats.put(seat, packed)
    return seats(y, x, segments)

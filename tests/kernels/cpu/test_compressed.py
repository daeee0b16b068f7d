"""Matrices in twelve bits a number: every value comes back, nothing that is computed changes, and less is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cpu_isas import HERE, WITHOUT_TILES
from torch import Tensor

from quire_kernels.cpu.library import load
from quire_kernels.cpu.linear import compressed as compact
from quire_kernels.cpu.low_rank_packing import SliceStruct
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.low_rank import LowRankUpdate, Segments

pytestmark = pytest.mark.usefixtures("threads")

BF16 = torch.bfloat16
RANK = 32


@pytest.fixture(params=WITHOUT_TILES)
def low_rank(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return CpuOps(load(WITHOUT_TILES[request.param])).low_rank


def applied(low_rank: Any, deltas: list[LowRankUpdate], x: Tensor) -> Tensor:
    """What one adapter makes of zeros; the slices lie side by side."""
    widths = [len(delta.b) for delta in deltas if delta.b is not None]
    slices = [(sum(widths[:i]), sum(widths[: i + 1])) for i in range(len(widths))]
    slots = low_rank(x.shape[1], slices, 1, BF16)
    slots.put(0, slots.pack(deltas))
    return slots(torch.zeros(len(x), sum(widths), dtype=BF16), x, Segments.from_uses([((0, 1.0),)], [len(x)]))


def is_compact(low_rank: Any, delta: LowRankUpdate) -> tuple[bool, bool]:
    """Whether a and b of a share are."""
    assert delta.a is not None
    assert delta.b is not None
    packed = low_rank(delta.a.shape[1], [(0, len(delta.b))], 1, BF16).pack([delta])
    return packed.struct.a.book is not None, SliceStruct.from_address(packed.struct.slices).b.book is not None


def gaussian(*shape: int) -> Tensor:
    return (torch.randn(shape) * 0.02).to(BF16)


def with_odd_values(*shape: int) -> Tensor:
    """Some far smaller and larger than the others, zeros of both signs, the largest and the smallest normal numbers."""
    weights = gaussian(*shape).flatten()
    odd = torch.tensor([0.0, -0.0, 1.0, -5e4, 1e-9, -1e-20, 3.3e38, -1.2e-38], dtype=BF16)
    places = torch.randperm(len(weights))[: len(weights) // 80]
    weights[places] = odd[torch.arange(len(places)) % len(odd)]
    return weights.reshape(shape)


@pytest.mark.parametrize("make", [gaussian, with_odd_values])
def test_every_value_of_a_comes_back(low_rank: Any, make: Any) -> None:
    a, eye = make(RANK, 160), torch.eye(RANK, dtype=BF16)
    assert is_compact(low_rank, LowRankUpdate(a, torch.zeros(RANK, RANK)))[0]
    got = applied(low_rank, [LowRankUpdate(a, eye)], torch.eye(160, dtype=BF16))
    assert torch.equal(got, a.T)


@pytest.mark.parametrize("make", [gaussian, with_odd_values])
@pytest.mark.parametrize("outputs", [16, 200, 1000])
def test_every_value_of_b_comes_back(low_rank: Any, make: Any, outputs: int) -> None:
    b, eye = make(outputs, RANK), torch.eye(RANK, dtype=BF16)
    assert is_compact(low_rank, LowRankUpdate(eye, b))[1]
    got = applied(low_rank, [LowRankUpdate(eye, b)], torch.eye(RANK, dtype=BF16))
    assert torch.equal(got, b.T)


@pytest.mark.parametrize("tokens", [1, 2, 13, 40])
@pytest.mark.parametrize("ranks", [(16, 8, 16), (3, 16, 64), (1, 1, 1), (40, 0, 8)], ids=str)
@pytest.mark.parametrize("inputs", [33, 576])
def test_nothing_that_is_computed_changes(
    low_rank: Any, tokens: int, ranks: tuple[int, ...], inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = (48, 200, 33)
    shapes = zip(ranks, widths, strict=True)
    deltas = [
        LowRankUpdate(with_odd_values(rank, inputs).clamp(-9, 9), gaussian(width, rank)) for rank, width in shapes
    ]
    x = torch.randn(tokens, inputs).to(BF16)
    found = applied(low_rank, deltas, x)
    monkeypatch.setattr(compact, "GROUP_VECTORS", 1 << 40)
    assert is_compact(low_rank, LowRankUpdate(with_odd_values(RANK, 64), gaussian(16, RANK))) == (False, False)
    assert found.isfinite().all()
    assert torch.equal(found.view(torch.int16), applied(low_rank, deltas, x).view(torch.int16))


def test_a_quarter_of_the_memory_is_saved(low_rank: Any) -> None:
    delta, slots = LowRankUpdate(gaussian(64, 4096), gaussian(4096, 64)), low_rank(4096, [(0, 4096)], 1, BF16)
    numbers = 2 * 64 * 4096
    assert 1.5 * numbers < slots.size([delta]) < 1.52 * numbers


def test_what_is_not_alike_stays_as_it_is(low_rank: Any) -> None:
    bits = torch.randint(0, 0x7F00, (2, RANK, 256), dtype=torch.int16)
    a, b = bits[0].view(BF16), bits[1].T.contiguous().view(BF16)
    assert is_compact(low_rank, LowRankUpdate(a, b)) == (False, False)
    assert low_rank(256, [(0, 256)], 1, BF16).size([LowRankUpdate(a, b)]) == 2 * (a.numel() + b.numel())
    got = applied(low_rank, [LowRankUpdate(a, torch.eye(RANK, dtype=BF16))], torch.eye(256, dtype=BF16))
    normal = a.T.abs() > 1.2e-38  # products of smaller ones are zero
    assert torch.equal(got[normal], a.T[normal])


def test_ranks_that_do_not_fill_groups_are_not_compact(low_rank: Any) -> None:
    assert is_compact(low_rank, LowRankUpdate(gaussian(6, 64), gaussian(64, 6))) == (True, False)
    assert is_compact(low_rank, LowRankUpdate(gaussian(8, 64), gaussian(64, 8))) == (True, True)


def test_float32_stays_as_it_is(low_rank: Any) -> None:
    delta = LowRankUpdate(torch.randn(8, 64), torch.randn(64, 8))
    slots = low_rank(64, [(0, 64)], 1, torch.float32)
    assert slots.size([delta]) == 4 * (16 * 64 + 64 * 8)


@pytest.mark.skipif(len(WITHOUT_TILES) == len(HERE), reason="no tiles on this machine")
def test_tiles_read_matrices_as_they_are() -> None:
    tiles = next(found for found in HERE.values() if found.tiles)
    assert is_compact(CpuOps(load(tiles)).low_rank, LowRankUpdate(gaussian(8, 64), gaussian(64, 8))) == (False, False)

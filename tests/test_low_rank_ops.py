"""The op `low_rank`: every implementation against the reference, for every instruction set that this machine has.

What holds to the last bit is tested as such: a token's share depends neither on its neighbours, nor on which seats
adapters have, nor on the number of threads; tokens of the base model stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cpu_here import HERE
from torch import Tensor

from quire_kernels import reference_low_rank, select, torch_low_rank
from quire_kernels.cpu import memory
from quire_kernels.cpu.library import load
from quire_kernels.cpu.ops import CpuOps
from quire_kernels.low_rank import ALIGNMENT, Delta, Segments, pack_all

pytestmark = pytest.mark.usefixtures("threads")

FLOATS = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
SEATS = 6

LowRank = Callable[..., Any]
Uses = Sequence[tuple[tuple[int, float], ...]]


@pytest.fixture(params=HERE)
def cpp(request: pytest.FixtureRequest) -> LowRank:
    return CpuOps(load(HERE[request.param])).low_rank


@pytest.fixture(params=["torch", *HERE])
def every(request: pytest.FixtureRequest) -> LowRank:
    return torch_low_rank.low_rank if request.param == "torch" else CpuOps(load(HERE[request.param])).low_rank


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


def deltas(rank: int, inputs: int, sizes: Sequence[int]) -> list[Delta | None]:
    """One adapter; every third matrix is left alone if there are several."""
    return [
        Delta(torch.randn(rank, inputs) / inputs**0.5, torch.randn(size, rank) / rank**0.5)
        if (i + rank) % 3 or len(sizes) == 1
        else None
        for i, size in enumerate(sizes)
    ]


def adapters_of(shape: str, ranks: str) -> list[list[Delta | None]]:
    inputs, sizes = SHAPES[shape]
    return [deltas(RANKS[ranks][i % len(RANKS[ranks])], inputs, sizes) for i in range(SEATS - 1)]


def slices_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    return [(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]


def seated(low_rank: LowRank, shape: str, dtype: torch.dtype, adapters: Sequence[Any], at: Sequence[int] = ()) -> Any:
    """Seats with the adapters on them, in order or as `at` says."""
    inputs, sizes = SHAPES[shape]
    seats = low_rank(inputs, slices_of(sizes), SEATS, dtype)
    for seat, packed in zip(at or range(SEATS), pack_all([(seats, adapter) for adapter in adapters])[0], strict=False):
        seats.put(seat, packed)
    return seats


def tensors(shape: str, dtype: torch.dtype, tokens: int) -> tuple[Tensor, Tensor]:
    inputs, sizes = SHAPES[shape]
    return torch.randn(tokens, sum(sizes)).to(dtype), torch.randn(tokens, inputs).to(dtype)


def popular(how: str) -> Uses:
    """Which adapter each of some requests uses, −1 for none."""
    drawn = np.random.default_rng(0)
    seats = {
        "all the same": [2] * 9,
        "all different": [4, 1, 0, 3, 2],
        "uniform": drawn.integers(-1, SEATS - 1, 17).tolist(),
        "zipf": [min(int(seat) - 1, SEATS - 2) for seat in drawn.zipf(1.5, 17)],
        "base only": [-1] * 4,
        "seats that are free": [SEATS - 1, 0, SEATS - 1],
    }[how]
    return [((seat, 1.0),) if seat >= 0 else () for seat in seats]


POPULAR = ["all the same", "all different", "uniform", "zipf", "base only", "seats that are free"]
SEVERAL: Uses = [
    ((0, 0.5), (3, 2.0)),
    (),
    ((3, 1.0),),
    ((2, -1.0), (0, 1.0), (4, 0.25)),
    ((1, 0.0),),
    ((4, 1.0), (4, 1.0)),
]
LENS = (1, 3, 1, 34, 1, 70, 1, 2, 1, 5, 1, 1, 33, 1, 1, 1, 8)


# --- against the reference ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_ranks_give_what_the_reference_gives(
    every: LowRank, shape: str, ranks: str, dtype: torch.dtype
) -> None:
    adapters, uses = adapters_of(shape, ranks), popular("uniform")
    segments = Segments.of(uses, LENS[: len(uses)])
    y, x = tensors(shape, dtype, segments.reach + 1)
    want = seated(reference_low_rank.low_rank, shape, dtype, adapters)(y.clone(), x, segments)
    got = seated(every, shape, dtype, adapters)(y.clone(), x, segments)
    assert not torch.equal(want, y)
    close(got, want, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("how", POPULAR)
def test_popularity_gives_what_the_reference_gives_and_leaves_base_rows_alone(
    every: LowRank, how: str, dtype: torch.dtype
) -> None:
    adapters, uses = adapters_of("fused", "mixed"), popular(how)
    for lens in ([1] * len(uses), LENS[: len(uses)]):
        segments = Segments.of(uses, lens)
        y, x = tensors("fused", dtype, sum(lens))
        want = seated(reference_low_rank.low_rank, "fused", dtype, adapters)(y.clone(), x, segments)
        got = seated(every, "fused", dtype, adapters)(y.clone(), x, segments)
        close(got, want, dtype)
        plain = torch.tensor([not use or use[0][0] == SEATS - 1 for use in uses]).repeat_interleave(torch.tensor(lens))
        assert torch.equal(got[plain], y[plain])
        assert not (got == y).all(-1)[~plain].any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_several_adapters_of_a_request_are_weighted(every: LowRank, dtype: torch.dtype) -> None:
    adapters, lens = adapters_of("odd", "mixed"), LENS[: len(SEVERAL)]
    segments = Segments.of(SEVERAL, lens)
    y, x = tensors("odd", dtype, sum(lens))
    want = seated(reference_low_rank.low_rank, "odd", dtype, adapters)(y.clone(), x, segments)
    close(seated(every, "odd", dtype, adapters)(y.clone(), x, segments), want, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scales_and_shifts_with_and_without_matrices(every: LowRank, dtype: torch.dtype) -> None:
    inputs, sizes = SHAPES["fused"]
    full = deltas(4, inputs, sizes)[0]
    assert full is not None
    scale, shift = torch.randn(sizes[0]), torch.randn(sizes[0])
    kinds = [
        [full._replace(scale=scale, shift=shift), None, None],
        [Delta(scale=scale), Delta(shift=torch.randn(sizes[1])), full and deltas(5, inputs, sizes)[2]],
        [full._replace(scale=scale), None, Delta(scale=torch.randn(sizes[2]), shift=torch.randn(sizes[2]))],
    ]
    uses: Uses = [((0, 1.0),), ((1, 1.0),), ((2, 0.5), (0, 2.0)), (), ((1, 0.25),)]
    segments = Segments.of(uses, [2, 1, 35, 3, 1])
    y, x = tensors("fused", dtype, segments.reach)
    want = seated(reference_low_rank.low_rank, "fused", dtype, kinds)(y.clone(), x, segments)
    close(seated(every, "fused", dtype, kinds)(y.clone(), x, segments), want, dtype)


def test_outputs_in_float32_are_not_rounded(every: LowRank) -> None:
    adapters, uses = adapters_of("fused", "8"), popular("all different")
    segments = Segments.of(uses, LENS[: len(uses)])
    y, x = tensors("fused", torch.bfloat16, segments.reach)
    wide = y.float() + 1e-4
    want = seated(reference_low_rank.low_rank, "fused", torch.bfloat16, adapters)(wide.clone(), x, segments)
    got = seated(every, "fused", torch.bfloat16, adapters)(wide.clone(), x, segments)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)
    assert not torch.equal(got, got.bfloat16().float())


def test_rows_and_columns_that_lie_apart(every: LowRank) -> None:
    adapters, uses = adapters_of("fused", "8"), popular("uniform")
    segments = Segments.of(uses, LENS[: len(uses)])
    y, x = tensors("fused", torch.float32, 2 * segments.reach)
    apart_y, apart_x = y[::2].t().contiguous().t(), torch.stack((x, x), -1).flatten(1)[::2, ::2]
    want = seated(reference_low_rank.low_rank, "fused", torch.float32, adapters)(y[::2].clone(), x[::2], segments)
    seats = seated(every, "fused", torch.float32, adapters)
    close(seats(apart_y, apart_x, segments), want, torch.float32)
    close(apart_y, want, torch.float32)
    close(seats(y[::2], x[::2], segments), want, torch.float32)


# --- to the last bit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", ["fused", "odd", "wide"])
def test_a_token_is_the_same_alone_and_among_any_others(cpp: LowRank, shape: str, dtype: torch.dtype) -> None:
    adapters = adapters_of(shape, "mixed")
    seats = seated(cpp, shape, dtype, adapters)
    lens = LENS[: len(SEVERAL)]
    y, x = tensors(shape, dtype, sum(lens))
    together = seats(y.clone(), x, Segments.of(SEVERAL, lens))
    token = 0
    for use, count in zip(SEVERAL, lens, strict=True):
        for t in range(token, token + count):
            alone = seats(y[t : t + 1].clone(), x[t : t + 1], Segments.of([use], [1]))
            assert torch.equal(alone[0], together[t]), (use, t)
        token += count


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_number_of_tokens_gives_the_same_rows(cpp: LowRank, dtype: torch.dtype) -> None:
    seats = seated(cpp, "fused", dtype, adapters_of("fused", "mixed"))
    y, x = tensors("fused", dtype, 70)
    for seat in range(SEATS - 1):
        want = seats(y.clone(), x, Segments.of([((seat, 1.0),)], [70]))
        for count in (1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 48, 64, 65):
            got = seats(y[:count].clone(), x[:count], Segments.of([((seat, 1.0),)], [count]))
            assert torch.equal(got, want[:count]), (seat, count)


@pytest.mark.parametrize("dtype", FLOATS)
def test_it_does_not_matter_who_sits_where_nor_how_many_threads_compute(
    cpp: LowRank, dtype: torch.dtype, threads: Any
) -> None:
    adapters, lens = adapters_of("fused", "mixed"), LENS[: len(SEVERAL)]
    y, x = tensors("fused", dtype, sum(lens))
    want = seated(cpp, "fused", dtype, adapters)(y.clone(), x, Segments.of(SEVERAL, lens))
    places = [3, 5, 0, 4, 1]
    uses = [tuple((places[seat], weight) for seat, weight in use) for use in SEVERAL]
    for count in (1, 2, 3):
        threads(count)
        got = seated(cpp, "fused", dtype, adapters, places)(y.clone(), x, Segments.of(uses, lens))
        assert torch.equal(got, want), count


# --- seats -------------------------------------------------------------------------------------------------


def test_seats_change_hands(every: LowRank) -> None:
    first, second = adapters_of("fused", "mixed")[:2]
    seats = seated(every, "fused", torch.float32, [first])
    y, x = tensors("fused", torch.float32, 3)
    segments = Segments.of([((0, 1.0),)], [3])
    before = seats(y.clone(), x, segments)
    seats.clear(0)
    assert torch.equal(seats(y.clone(), x, segments), y)
    seats.put(0, seats.pack(second))
    want = seated(reference_low_rank.low_rank, "fused", torch.float32, [second])(y.clone(), x, segments)
    close(seats(y.clone(), x, segments), want, torch.float32)
    seats.put(0, seats.pack(first))
    assert torch.equal(seats(y.clone(), x, segments), before)


def test_packing_again_into_used_memory_gives_the_same(every: LowRank) -> None:
    inputs, sizes = SHAPES["odd"]
    seats = every(inputs, slices_of(sizes), 1, torch.bfloat16)
    y, x = tensors("odd", torch.bfloat16, 5)
    segments = Segments.of([((0, 1.0),)], [5])
    given = deltas(7, inputs, sizes)
    found = []
    for filling in (0, 255):
        room = memory.mapped(seats.size(given)).fill_(filling)
        seats.put(0, seats.pack(given, room))
        found.append(seats(y.clone(), x, segments))
    assert torch.equal(*found)


@pytest.mark.parametrize("low_rank", [reference_low_rank.low_rank, torch_low_rank.low_rank, "cpp"], ids=str)
def test_what_does_not_fit_is_refused(low_rank: Any) -> None:
    if low_rank == "cpp":
        low_rank = select.choose(_Query()).low_rank
    seats = low_rank(8, [(0, 4), (4, 6)], 2, torch.float32)
    a, b = torch.randn(3, 8), torch.randn(4, 3)
    for wrong, message in (
        ([(a, b)], "2 deltas were expected"),
        ([(a[:, :7], b), None], r"a must be \[3, 8\]"),
        ([(a, b[:, :2]), None], r"b must be \[4, 3\]"),
        ([None, (a, b)], r"b must be \[2, 3\]"),
        ([Delta(a), None], "a and b come together"),
        ([None, Delta(scale=torch.ones(4))], r"scale must be \[2\]"),
        ([Delta(shift=torch.ones(3)), None], r"shift must be \[4\]"),
    ):
        with pytest.raises(ValueError, match=message):
            seats.pack(wrong)
        with pytest.raises(ValueError, match=message):
            seats.size(wrong)
    packed = seats.pack([(a, b), None])
    for seat in (-1, 2):
        with pytest.raises(ValueError, match="seats are 0 to 1"):
            seats.put(seat, packed)
        with pytest.raises(ValueError, match="seats are 0 to 1"):
            seats.clear(seat)


def test_tensors_of_other_shapes_are_refused(cpp: LowRank) -> None:
    seats = cpp(8, [(0, 4)], 1, torch.bfloat16)
    seats.put(0, seats.pack([(torch.randn(2, 8), torch.randn(4, 2))]))
    one, y, x = Segments.of([((0, 1.0),)], [1]), torch.zeros(1, 4).bfloat16(), torch.zeros(1, 8).bfloat16()
    for wrong_y, wrong_x in ((y[:, :3], x), (y, x[:, :7]), (y, x.float()), (y.half(), x)):
        with pytest.raises(ValueError, match="these seats take"):
            seats(wrong_y, wrong_x, one)
    with pytest.raises(ValueError, match="segments of 2 tokens"):
        seats(y, x, Segments.of([(), ((0, 1.0),)], [1, 1]))
    with pytest.raises(ValueError, match="aligned to 64"):
        seats.pack([None], torch.zeros(64 + ALIGNMENT, dtype=torch.uint8)[1:])


def test_an_adapter_is_one_piece_of_memory_that_goes_back_to_the_system(cpp: LowRank) -> None:
    seats = [cpp(512, [(0, 512)], 1, torch.bfloat16) for _ in range(16)]
    matrices = [(torch.randn(1024, 512), torch.randn(512, 1024))]
    before = resident()
    packed, size = pack_all([(each, matrices) for each in seats])
    assert size == 16 * seats[0].size(matrices)
    begins = [share.kept[0].data_ptr() for share in packed]
    assert [b - a for a, b in pairwise(begins)] == [seats[0].size(matrices)] * 15
    taken = resident() - before
    assert taken > size * 0.9
    del packed
    assert resident() - before < taken // 4


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class _Query:
    device, dtype, page_size, head_dims, kv_dtype, needs = "cpu", "float32", 16, (), "auto", frozenset()

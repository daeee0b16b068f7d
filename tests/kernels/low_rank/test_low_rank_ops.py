"""The op `low_rank`: every implementation against the reference, for every instruction set that this machine has.

Equal to the last bit: the update of a token depends neither on the other tokens, nor on the slots of the adapters,
nor on the number of threads; tokens of the base model are unchanged.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from low_rank_problems import (
    FLOATS,
    LENS,
    POPULAR,
    RANKS,
    SEVERAL,
    SHAPES,
    SLOTS,
    LowRank,
    Uses,
    adapter_slots,
    adapters_of,
    close,
    deltas,
    popular,
    tensors,
)

from quire_kernels import reference_low_rank
from quire_kernels.low_rank import LowRankUpdate, Segments

pytestmark = pytest.mark.usefixtures("seeded")


# --- against the reference ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_and_ranks_give_what_the_reference_gives(
    every: LowRank, shape: str, ranks: str, dtype: torch.dtype
) -> None:
    adapters, uses = adapters_of(shape, ranks), popular("uniform")
    segments = Segments.from_uses(uses, LENS[: len(uses)])
    y, x = tensors(shape, dtype, segments.min_tokens + 1)
    want = adapter_slots(reference_low_rank.low_rank, shape, dtype, adapters)(y.clone(), x, segments)
    got = adapter_slots(every, shape, dtype, adapters)(y.clone(), x, segments)
    assert not torch.equal(want, y)
    close(got, want, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("how", POPULAR)
def test_popularity_gives_what_the_reference_gives_and_leaves_base_rows_alone(
    every: LowRank, how: str, dtype: torch.dtype
) -> None:
    adapters, uses = adapters_of("fused", "mixed"), popular(how)
    for lens in ([1] * len(uses), LENS[: len(uses)]):
        segments = Segments.from_uses(uses, lens)
        y, x = tensors("fused", dtype, sum(lens))
        want = adapter_slots(reference_low_rank.low_rank, "fused", dtype, adapters)(y.clone(), x, segments)
        got = adapter_slots(every, "fused", dtype, adapters)(y.clone(), x, segments)
        close(got, want, dtype)
        plain = torch.tensor([not use or use[0][0] == SLOTS - 1 for use in uses]).repeat_interleave(torch.tensor(lens))
        assert torch.equal(got[plain], y[plain])
        assert not (got == y).all(-1)[~plain].any()


@pytest.mark.parametrize("dtype", FLOATS)
def test_several_adapters_of_a_request_are_weighted(every: LowRank, dtype: torch.dtype) -> None:
    adapters, lens = adapters_of("odd", "mixed"), LENS[: len(SEVERAL)]
    segments = Segments.from_uses(SEVERAL, lens)
    y, x = tensors("odd", dtype, sum(lens))
    want = adapter_slots(reference_low_rank.low_rank, "odd", dtype, adapters)(y.clone(), x, segments)
    close(adapter_slots(every, "odd", dtype, adapters)(y.clone(), x, segments), want, dtype)


@pytest.mark.parametrize("dtype", FLOATS)
def test_scales_and_shifts_with_and_without_matrices(every: LowRank, dtype: torch.dtype) -> None:
    inputs, sizes = SHAPES["fused"]
    full = deltas(4, inputs, sizes)[0]
    assert full is not None
    scale, shift = torch.randn(sizes[0]), torch.randn(sizes[0])
    kinds = [
        [full._replace(scale=scale, shift=shift), None, None],
        [LowRankUpdate(scale=scale), LowRankUpdate(shift=torch.randn(sizes[1])), full and deltas(5, inputs, sizes)[2]],
        [full._replace(scale=scale), None, LowRankUpdate(scale=torch.randn(sizes[2]), shift=torch.randn(sizes[2]))],
    ]
    uses: Uses = [((0, 1.0),), ((1, 1.0),), ((2, 0.5), (0, 2.0)), (), ((1, 0.25),)]
    segments = Segments.from_uses(uses, [2, 1, 35, 3, 1])
    y, x = tensors("fused", dtype, segments.min_tokens)
    want = adapter_slots(reference_low_rank.low_rank, "fused", dtype, kinds)(y.clone(), x, segments)
    close(adapter_slots(every, "fused", dtype, kinds)(y.clone(), x, segments), want, dtype)


def test_outputs_in_float32_are_not_rounded(every: LowRank) -> None:
    adapters, uses = adapters_of("fused", "8"), popular("all different")
    segments = Segments.from_uses(uses, LENS[: len(uses)])
    y, x = tensors("fused", torch.bfloat16, segments.min_tokens)
    wide = y.float() + 1e-4
    want = adapter_slots(reference_low_rank.low_rank, "fused", torch.bfloat16, adapters)(wide.clone(), x, segments)
    got = adapter_slots(every, "fused", torch.bfloat16, adapters)(wide.clone(), x, segments)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want, atol=1e-2, rtol=1e-2)
    assert not torch.equal(got, got.bfloat16().float())


def test_rows_and_columns_that_lie_apart(every: LowRank) -> None:
    adapters, uses = adapters_of("fused", "8"), popular("uniform")
    segments = Segments.from_uses(uses, LENS[: len(uses)])
    y, x = tensors("fused", torch.float32, 2 * segments.min_tokens)
    apart_y, apart_x = y[::2].t().contiguous().t(), torch.stack((x, x), -1).flatten(1)[::2, ::2]
    want = adapter_slots(reference_low_rank.low_rank, "fused", torch.float32, adapters)(
        y[::2].clone(), x[::2], segments
    )
    slots = adapter_slots(every, "fused", torch.float32, adapters)
    close(slots(apart_y, apart_x, segments), want, torch.float32)
    close(apart_y, want, torch.float32)
    close(slots(y[::2], x[::2], segments), want, torch.float32)


# --- to the last bit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", ["fused", "odd", "wide"])
def test_a_token_is_the_same_alone_and_among_any_others(cpp: LowRank, shape: str, dtype: torch.dtype) -> None:
    adapters = adapters_of(shape, "mixed")
    slots = adapter_slots(cpp, shape, dtype, adapters)
    lens = LENS[: len(SEVERAL)]
    y, x = tensors(shape, dtype, sum(lens))
    together = slots(y.clone(), x, Segments.from_uses(SEVERAL, lens))
    token = 0
    for use, count in zip(SEVERAL, lens, strict=True):
        for t in range(token, token + count):
            alone = slots(y[t : t + 1].clone(), x[t : t + 1], Segments.from_uses([use], [1]))
            assert torch.equal(alone[0], together[t]), (use, t)
        token += count


@pytest.mark.parametrize("dtype", FLOATS)
def test_any_number_of_tokens_gives_the_same_rows(cpp: LowRank, dtype: torch.dtype) -> None:
    slots = adapter_slots(cpp, "fused", dtype, adapters_of("fused", "mixed"))
    y, x = tensors("fused", dtype, 70)
    for slot in range(SLOTS - 1):
        want = slots(y.clone(), x, Segments.from_uses([((slot, 1.0),)], [70]))
        for count in (1, 2, 3, 5, 15, 16, 17, 31, 32, 33, 48, 64, 65):
            got = slots(y[:count].clone(), x[:count], Segments.from_uses([((slot, 1.0),)], [count]))
            assert torch.equal(got, want[:count]), (slot, count)


@pytest.mark.parametrize("dtype", FLOATS)
def test_results_depend_neither_on_slots_nor_on_the_number_of_threads(
    cpp: LowRank, dtype: torch.dtype, threads: Any
) -> None:
    adapters, lens = adapters_of("fused", "mixed"), LENS[: len(SEVERAL)]
    y, x = tensors("fused", dtype, sum(lens))
    want = adapter_slots(cpp, "fused", dtype, adapters)(y.clone(), x, Segments.from_uses(SEVERAL, lens))
    places = [3, 5, 0, 4, 1]
    uses = [tuple((places[slot], weight) for slot, weight in use) for use in SEVERAL]
    for count in (1, 2, 3):
        threads(count)
        got = adapter_slots(cpp, "fused", dtype, adapters, places)(y.clone(), x, Segments.from_uses(uses, lens))
        assert torch.equal(got, want), count

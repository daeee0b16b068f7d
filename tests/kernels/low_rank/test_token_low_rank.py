"""The op `low_rank` in Triton for captured steps, in its interpreter: only the device knows the slots of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from interpreted import needs_triton, triton_ops

from quire_kernels import reference_low_rank
from quire_kernels.low_rank import LowRankUpdate, Segments, TokenSlots

pytestmark = needs_triton
SLICES = [(0, 150), (150, 170)]


@pytest.fixture
def interpreted() -> Iterator[Any]:
    yield from triton_ops(True)


def updates(rank: int) -> list[LowRankUpdate]:
    return [
        LowRankUpdate(torch.randn(rank, 600) / 25, torch.randn(150, rank)),
        LowRankUpdate(torch.randn(7, 600) / 25, torch.randn(20, 7), torch.randn(20), torch.randn(20)),
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_token_gets_its_adapter_and_others_stay(interpreted: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    ours, theirs = (make(600, SLICES, 4, dtype, "cpu") for make in (interpreted.low_rank, reference_low_rank.low_rank))
    for slot, update in {0: updates(16), 1: updates(3), 3: [None, LowRankUpdate(shift=torch.randn(20))]}.items():
        for each in (ours, theirs):
            each.put(slot, each.pack(update))
    used = [(1, 1.0), None, (0, 0.5), (3, 2.0), (2, 1.0), (0, 1.0)]
    y, x = torch.randn(6, 170).to(dtype), torch.randn(6, 600).to(dtype)
    slots = torch.tensor([-1 if use is None else use[0] for use in used], dtype=torch.int32)
    weights = torch.tensor([0.0 if use is None else use[1] for use in used])
    found = ours(y.clone(), x, TokenSlots.on_device(slots, weights, max_rank=16))
    wanted = theirs(y.clone(), x, Segments.from_uses([() if use is None else (use,) for use in used], [1] * 6))
    torch.testing.assert_close(found, wanted, atol=1e-4 if dtype == torch.float32 else 6e-2, rtol=1e-2)
    assert torch.equal(found[[1, 4]], y[[1, 4]])
    alone = ours(y[2:3].clone(), x[2:3], TokenSlots.on_device(slots[2:3], weights[2:3], max_rank=16))
    assert torch.equal(alone[0], found[2])


def test_segments_know_the_slot_of_each_token_if_it_has_one() -> None:
    one = Segments.from_uses([((2, 1.0),), (), ((0, 0.5),)], [1, 1, 1])
    assert one.slot_of_tokens() is None
    tokens, slots, weights = (each.tolist() for each in replace(one, capturable=True).slot_of_tokens() or ())
    assert sorted(zip(tokens, slots, weights, strict=True)) == [(0, 2, 1.0), (2, 0, 0.5)]
    two = Segments.from_uses([((2, 1.0), (3, 1.0))], [1])
    assert replace(two, capturable=True).slot_of_tokens() is None

"""Adapter slots: replaced weights, shapes that are refused, and the memory they take."""

from __future__ import annotations

import ctypes
import mmap
from itertools import pairwise
from typing import Any

import pytest
import torch
from low_rank_problems import SHAPES, LowRank, adapter_slots, adapters_of, close, deltas, slices_of, tensors

from quire_kernels import reference_low_rank, select
from quire_kernels.cpu import memory
from quire_kernels.low_rank import ALIGNMENT, LowRankUpdate, Segments, pack_all
from quire_kernels.pytorch import low_rank as torch_low_rank

pytestmark = pytest.mark.usefixtures("seeded")
LIBC = ctypes.CDLL(None, use_errno=True)
PAGE = mmap.PAGESIZE


def test_a_slot_takes_another_adapter_after_it_was_cleared(every: LowRank) -> None:
    first, second = adapters_of("fused", "mixed")[:2]
    slots = adapter_slots(every, "fused", torch.float32, [first])
    y, x = tensors("fused", torch.float32, 3)
    segments = Segments.from_uses([((0, 1.0),)], [3])
    before = slots(y.clone(), x, segments)
    slots.clear(0)
    assert torch.equal(slots(y.clone(), x, segments), y)
    slots.put(0, slots.pack(second))
    want = adapter_slots(reference_low_rank.low_rank, "fused", torch.float32, [second])(y.clone(), x, segments)
    close(slots(y.clone(), x, segments), want, torch.float32)
    slots.put(0, slots.pack(first))
    assert torch.equal(slots(y.clone(), x, segments), before)


def test_packing_again_into_used_memory_gives_the_same(every: LowRank) -> None:
    inputs, sizes = SHAPES["odd"]
    slots = every(inputs, slices_of(sizes), 1, torch.bfloat16)
    y, x = tensors("odd", torch.bfloat16, 5)
    segments = Segments.from_uses([((0, 1.0),)], [5])
    given = deltas(7, inputs, sizes)
    found = []
    for filling in (0, 255):
        room = memory.map_zeros(slots.size(given)).fill_(filling)
        slots.put(0, slots.pack(given, room))
        found.append(slots(y.clone(), x, segments))
    assert torch.equal(*found)


@pytest.mark.parametrize(
    "low_rank", [reference_low_rank.low_rank, torch_low_rank.low_rank, "cpp"], ids=["reference", "torch", "cpp"]
)
def test_what_does_not_fit_is_refused(low_rank: Any) -> None:
    if low_rank == "cpp":
        low_rank = select.choose(_Query()).low_rank
    slots = low_rank(8, [(0, 4), (4, 6)], 2, torch.float32)
    a, b = torch.randn(3, 8), torch.randn(4, 3)
    for wrong, message in (
        ([(a, b)], "expected 2 deltas"),
        ([(a[:, :7], b), None], r"a must be \[3, 8\]"),
        ([(a, b[:, :2]), None], r"b must be \[4, 3\]"),
        ([None, (a, b)], r"b must be \[2, 3\]"),
        ([LowRankUpdate(a), None], "must have both a and b"),
        ([None, LowRankUpdate(scale=torch.ones(4))], r"scale must be \[2\]"),
        ([LowRankUpdate(shift=torch.ones(3)), None], r"shift must be \[4\]"),
    ):
        with pytest.raises(ValueError, match=message):
            slots.pack(wrong)
        with pytest.raises(ValueError, match=message):
            slots.size(wrong)
    packed = slots.pack([(a, b), None])
    for slot in (-1, 2):
        with pytest.raises(ValueError, match="slots are 0 to 1"):
            slots.put(slot, packed)
        with pytest.raises(ValueError, match="slots are 0 to 1"):
            slots.clear(slot)


def test_tensors_of_other_shapes_are_refused(cpp: LowRank) -> None:
    slots = cpp(8, [(0, 4)], 1, torch.bfloat16)
    slots.put(0, slots.pack([(torch.randn(2, 8), torch.randn(4, 2))]))
    one, y, x = Segments.from_uses([((0, 1.0),)], [1]), torch.zeros(1, 4).bfloat16(), torch.zeros(1, 8).bfloat16()
    for wrong_y, wrong_x in ((y[:, :3], x), (y, x[:, :7]), (y, x.float()), (y.half(), x)):
        with pytest.raises(ValueError, match="expected y"):
            slots(wrong_y, wrong_x, one)
    with pytest.raises(ValueError, match="segments need 2 tokens"):
        slots(y, x, Segments.from_uses([(), ((0, 1.0),)], [1, 1]))
    with pytest.raises(ValueError, match="aligned to 64"):
        slots.pack([None], torch.zeros(64 + ALIGNMENT, dtype=torch.uint8)[1:])


def test_an_adapter_is_one_piece_of_memory_that_goes_back_to_the_system(cpp: LowRank) -> None:
    slots = [cpp(512, [(0, 512)], 1, torch.bfloat16) for _ in range(16)]
    matrices = [(torch.randn(1024, 512), torch.randn(512, 1024))]
    packed, size = pack_all([(each, matrices) for each in slots])
    assert size == 16 * slots[0].size(matrices)
    begins = [share.kept[0].data_ptr() for share in packed]
    assert [b - a for a, b in pairwise(begins)] == [slots[0].size(matrices)] * 15
    begin = begins[0] + PAGE - begins[0] % PAGE
    pages = (begins[0] + size - begin) // PAGE
    flags = (ctypes.c_ubyte * pages)()
    assert resident(begin, flags) == pages
    del packed
    assert resident(begin, flags) == 0


def resident(begin: int, flags: ctypes.Array[ctypes.c_ubyte]) -> int:
    """The pages from address `begin` that are in memory: one flag a page, filled by mincore(2); 0 if unmapped."""
    found = LIBC.mincore(ctypes.c_void_p(begin), ctypes.c_size_t(len(flags) * PAGE), flags)
    return 0 if found else sum(flag & 1 for flag in flags)


class _Query:
    device, dtype, page_size, head_dims, kv_dtype, needs = "cpu", "float32", 16, (), "auto", frozenset()
    attention_options, attention_backend = frozenset[str](), "auto"

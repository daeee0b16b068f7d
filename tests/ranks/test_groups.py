"""Sums and gathers over the ranks of a group, and what happens when a rank does not take part."""

import os
import threading
from ctypes import addressof

import pytest
import torch
from divided_model import groups, on_ranks, socket_groups

from quire_kernels.cpu.compiled.proxies import Untraceable
from quire_kernels.cpu.compiled.tracer import Tracer
from quire_kernels.cpu.implementations import compiled
from quire_kernels.cpu.structs import Op
from quire_kernels.groups.group import RankLost
from quire_kernels.groups.shared_memory import SLOT_BYTES, SharedMemoryGroup, anonymous_memory, shared_bytes
from quire_kernels.groups.sockets import SocketGroup

SLOT = SLOT_BYTES // 4
WAYS = pytest.mark.parametrize("make", [groups, socket_groups], ids=["memory", "sockets"])


def addends(size, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(size)]


def in_order(parts):
    """The sum in float32, rank by rank, rounded once."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total.to(parts[0].dtype)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 5])
def test_every_rank_gets_the_sum_in_the_order_of_the_ranks(size, dtype, threads):
    members = groups(size, threads=threads)
    shapes = [(1, 1), (1, 17), (3, 64), (2, SLOT), (1, 5 * SLOT + 3)]

    def work(rank):
        members[rank].begin()
        return [members[rank].all_reduce(addends(size, shape, dtype)[rank].clone()) for shape in shapes]

    for found in on_ranks(work, size):
        for sum_, shape in zip(found, shapes, strict=True):
            assert torch.equal(sum_, in_order(addends(size, shape, dtype)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 5])
def test_sums_through_sockets_have_the_same_bits(size, dtype):
    members = socket_groups(size)
    shapes = [(1, 1), (3, 64), (2, SLOT), (1, SocketGroup.slot_bytes + 3)]

    def work(rank):
        members[rank].begin()
        return [members[rank].all_reduce(addends(size, shape, dtype)[rank].clone()) for shape in shapes]

    for found in on_ranks(work, size):
        for sum_, shape in zip(found, shapes, strict=True):
            assert torch.equal(sum_, in_order(addends(size, shape, dtype)))


@WAYS
def test_columns_of_different_widths_come_together_on_the_first_rank_or_on_all(make):
    widths = (5, 3, SLOT + 2)
    members = make(3)
    parts = [torch.randn(4, width, generator=torch.Generator().manual_seed(width)) for width in widths]

    def work(rank):
        members[rank].begin()
        return [members[rank].gather(parts[rank], widths, to_all) for to_all in (False, True)]

    found = on_ranks(work, 3)
    assert [one is None for one, _ in found] == [False, True, True]
    for gathered in (found[0][0], *(everywhere for _, everywhere in found)):
        assert torch.equal(gathered, torch.cat(parts, 1))


def test_processes_share_memory_without_a_name():
    library = compiled()
    descriptor, memory = anonymous_memory(shared_bytes(library, 2, 1))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            group = SharedMemoryGroup(library, memory, 1, 2, 1)
            group.begin()
            status = 0 if torch.equal(group.all_reduce(torch.full((1, 9), 2.0)), torch.full((1, 9), 3.0)) else 2
        finally:
            os._exit(status)
    group = SharedMemoryGroup(library, memory, 0, 2, 1)
    group.begin()
    assert torch.equal(group.all_reduce(torch.ones(1, 9)), torch.full((1, 9), 3.0))
    assert os.waitpid(child, 0)[1] == 0
    os.close(descriptor)


@WAYS
def test_a_rank_that_begins_again_after_an_error_takes_the_others_along(make):
    members = make(2)

    def work(rank):
        members[rank].start_plan(7)
        members[rank].begin()
        members[rank].all_reduce(torch.ones(1, 4))
        left = None
        if rank == 0:
            with pytest.raises(RankLost) as lost:
                members[0].all_reduce(torch.ones(1, 4))
            left = lost.value.lasting
        members[rank].begin()  # rank 1 never came to the second sum
        return left, members[rank].all_reduce(torch.full((1, 4), 1.0 + rank)).tolist()

    assert on_ranks(work, 2) == [(False, [[3.0] * 4]), (None, [[3.0] * 4])]


@WAYS
def test_ranks_that_add_up_different_rows_fail(make):
    members = make(2)

    def work(rank):
        members[rank].begin()
        members[rank].all_reduce(torch.ones(3, 4))
        with pytest.raises(RankLost, match="different tokens") as lost:
            members[rank].all_reduce(torch.ones(2 + rank, 4))
        return lost.value.lasting

    assert on_ranks(work, 2) == [True, True]


def test_what_was_sent_to_a_rank_that_has_left_is_dropped():
    """Rank 0 leaves before the sum that the others have sent their addends of."""
    members = socket_groups(3)

    def work(rank):
        members[rank].start_plan(7)
        members[rank].begin()
        if rank:
            with pytest.raises(RankLost):
                members[rank].all_reduce(torch.ones(1, 9000))
        members[rank].begin()
        return members[rank].all_reduce(torch.full((1, 4), 1.0 + rank)).tolist()

    assert on_ranks(work, 3) == [[[6.0] * 4]] * 3


@WAYS
def test_a_rank_that_was_faster_has_not_left(make):
    """The one that computes the last sum first may begin the next pass before the other has seen it."""
    members = make(2)

    def work(rank):
        for _ in range(50):
            members[rank].begin()
            members[rank].all_reduce(torch.ones(1, 4))
        return True

    assert on_ranks(work, 2) == [True, True]


@WAYS
def test_a_rank_that_does_not_come_is_given_up_after_a_while(make):
    members = make(2, timeout_s=0.05)
    group = members[0]
    with pytest.raises(RankLost, match="does not answer") as lost:
        group.begin()
    assert lost.value.lasting


@WAYS
def test_a_failed_group_fails_at_once(make):
    members = make(2, timeout_s=600)
    waiting = threading.Thread(target=members[make is groups].fail)  # sockets: each rank itself is asked to give up
    waiting.start()
    with pytest.raises(RankLost, match="has ended"):
        members[0].begin()
    waiting.join()


def test_a_closed_connection_ends_the_group_at_once():
    members = socket_groups(2, timeout_s=600)
    del members[1]
    with pytest.raises(RankLost, match="has ended") as lost:
        members[0].begin()
    assert lost.value.lasting


def test_a_sum_is_an_instruction_of_programs():
    tracer = Tracer(8)
    x, group = tracer.source(), groups(2)[0]
    assert group.all_reduce(x) is x
    (instruction,) = tracer.instructions
    assert (instruction.op, instruction.weight) == (Op.ALL_REDUCE, addressof(group._member))
    with pytest.raises(Untraceable, match="whole rows"):
        group.all_reduce(x.split([4, 4], -1)[0])


@pytest.mark.parametrize(("rank", "size", "threads"), [(2, 2, 1), (0, 65, 1), (0, 2, 0)])
def test_impossible_groups_are_refused(rank, size, threads):
    with pytest.raises(ValueError, match="rank"):
        SharedMemoryGroup(compiled(), anonymous_memory(1 << 12)[1], rank, size, threads)

"""Which seqs are preempted when pages run out, and when they return."""

import logging

import pytest
from scheduler_rig import Rig

from quire.records import Context
from quire_plugins.policies import ByPriority


def test_the_latest_arrival_gives_up_its_pages_and_is_recomputed_with_what_it_generated():
    rig = Rig(num_pages=6, page_size=2, caching=False)
    rig.add([1, 2, 3, 4], {"max_tokens": 8})
    rig.add([5, 6, 7, 8], {"max_tokens": 4})
    rig.run()
    stats = rig.stats()
    assert (stats.num_preemptions_recompute_total, stats.num_preemptions_swap_total) == (1, 0)
    assert sorted(stats.ended_preemptions) == [0] * (len(stats.ended_preemptions) - 1) + [1]
    assert rig.stats().ended_preemptions == ()
    first, again = [start for plan in rig.plans for start in plan.started if start.seq_id == 1]
    assert again.output_ids == tuple(rig.output("r1")[: len(again.output_ids)]) != ()
    assert again.seed == first.seed
    assert rig.order() == ["r0", "r1"]


def test_pages_are_swapped_to_host_memory_and_return_before_new_seqs_begin():
    rig = Rig(num_pages=6, page_size=2, host_pages=6, caching=False)
    rig.add([1, 2, 3, 4], {"max_tokens": 8})
    rig.add([5, 6, 7, 8], {"max_tokens": 4})
    while not rig.stats().num_swapped:
        rig.step()
    assert (rig.plan.ended, len(rig.plan.swaps_out)) == ((1,), 3)
    rig.add([9])
    rig.run()
    assert rig.order() == ["r0", "r1", "r2"]
    assert rig.stats().num_preemptions_swap_total == 1
    assert sum(len(plan.swaps_in) for plan in rig.plans) == 3
    computed = [chunk.start for plan in rig.plans for chunk in plan.chunks if chunk.seq_id == 1]
    assert computed == sorted(set(computed)), "nothing was computed twice"


@pytest.mark.parametrize(("preemption", "host_pages"), [("recompute", 9), ("swap", 1), ("auto", 2)])
def test_pages_are_recomputed_when_asked_for_or_when_the_host_has_no_room(preemption, host_pages):
    rig = Rig(num_pages=6, page_size=2, host_pages=host_pages, preemption=preemption)
    rig.add([1, 2, 3, 4], {"max_tokens": 8})
    rig.add([5, 6, 7, 8], {"max_tokens": 4})
    rig.run()
    assert (rig.stats().num_preemptions_recompute_total, rig.stats().num_preemptions_swap_total) == (1, 0)


def test_preemptions_are_reported_but_not_every_one(caplog):
    rig = Rig(num_pages=6, page_size=2, caching=False)
    with caplog.at_level(logging.WARNING):
        for _ in range(30):
            rig.add([1, 2, 3, 4], {"max_tokens": 8})
            rig.add([5, 6, 7, 8], {"max_tokens": 4})
        rig.run()
    preemptions = rig.stats().num_preemptions_recompute_total
    assert preemptions > 20
    assert len(caplog.records) == -(-preemptions // 50)
    assert "The KV cache is full: request r2 is preempted and will be recomputed (1" in caplog.text


def test_priority_decides_which_seqs_are_admitted_and_which_are_preempted():
    rig = Rig(num_pages=6, page_size=2, policy=ByPriority(Context()), max_num_seqs=2, caching=False)
    rig.add([1, 2, 3, 4], {"max_tokens": 4}, priority=5)
    rig.add([5, 6, 7, 8], {"max_tokens": 8}, priority=1)
    rig.add([1], priority=3)
    rig.add([2], priority=-1)
    rig.step()
    assert set(rig.counts()) == {3, 1}
    rig.run()
    assert rig.order() == ["r3", "r1", "r2", "r0"]


def test_a_newcomer_is_not_begun_while_there_are_no_pages_for_all_of_its_prompt():
    rig = Rig(num_pages=6, page_size=4, max_num_batched_tokens=5, caching=False)
    rig.add([1] * 4, {"max_tokens": 9})
    rig.add([2] * 21, {"max_tokens": 1})
    rig.step()
    rig.step()
    assert (set(rig.counts()), rig.pool.available) == ({0}, 4)
    rig.run()
    assert rig.order() == ["r0", "r1"]
    assert rig.stats().num_preemptions_recompute_total == 0


def test_a_few_pages_are_reserved_for_the_growth_of_running_seqs():
    rig = Rig(num_pages=100, page_size=1, caching=False)
    rig.add([1] * 50, {"max_tokens": 2})
    rig.add([2] * 50, {"max_tokens": 1})
    rig.step()
    assert rig.counts() == {0: 50}, "its prompt would take the last page"
    rig = Rig(num_pages=100, page_size=1, caching=False)
    rig.add([1] * 50, {"max_tokens": 2})
    rig.add([2] * 49, {"max_tokens": 1, "n": 2})
    rig.step()
    assert rig.counts() == {0: 50}, "a fork grows, too"


def test_forks_that_begin_at_once_wait_a_step_when_there_are_no_pages_for_all():
    rig = Rig(num_pages=2, page_size=4, caching=False)
    rig.add([1], {"n": 3, "max_tokens": 3})
    rig.step()
    assert rig.counts() == {0: 1, 1: 1}
    rig.run()
    assert [len(rig.output("r0", index)) for index in range(3)] == [3, 3, 3]

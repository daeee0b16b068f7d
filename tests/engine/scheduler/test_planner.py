"""What each step computes, one rule at a time; `test_scheduler_random` tries all rules together."""

import pytest
from scheduler_rig import Rig

from quire.engine.scheduler.candidates import Admission
from quire.errors import BadRequest


def test_a_prompt_is_computed_and_then_one_token_per_step():
    rig = Rig()
    rig.add(range(10), {"max_tokens": 3})
    rig.run()
    assert [[(c.start, len(c.token_ids), c.samples) for c in plan.chunks] for plan in rig.plans] == [
        [(0, 10, True)],
        [(10, 1, True)],
        [(11, 1, True)],
        [],
    ]
    assert rig.plans[-1].ended == (0,)
    assert [len(plan.started) for plan in rig.plans] == [1, 0, 0, 0]


def test_an_idle_scheduler_plans_nothing():
    rig = Rig()
    assert not rig.scheduler.has_work
    assert rig.scheduler.plan().is_empty


def test_a_long_prompt_is_chunked_while_running_seqs_generate():
    rig = Rig(max_num_batched_tokens=8)
    rig.add([1] * 3, {"max_tokens": 20})
    rig.step()
    rig.add([2] * 20)
    rig.step()
    assert rig.counts() == {0: 1, 1: 7}
    rig.add([3] * 3)
    rig.step()
    assert rig.counts() == {0: 1, 1: 7}
    rig.step()
    assert rig.counts() == {0: 1, 1: 6, 2: 1}
    rig.step()
    assert rig.counts() == {0: 1, 1: 1, 2: 2}


def test_a_running_prompt_leaves_a_token_for_each_seq_behind_it():
    rig = Rig(max_num_batched_tokens=8)
    rig.add([1] * 30)
    rig.step(max_tokens=3)
    rig.add([2] * 2)
    rig.step()
    assert rig.counts() == {0: 8}, "nothing is left for a newcomer"
    rig = Rig(max_num_batched_tokens=8)
    rig.add([1] * 9)
    rig.add([2] * 3)
    rig.step()
    rig.step()
    assert rig.counts() == {0: 1, 1: 3}


def test_a_step_takes_at_most_the_tokens_the_caller_allows_and_every_seq_gets_its_share():
    rig = Rig()
    for i in range(5):
        rig.add([i], {"max_tokens": 4})
    rig.step()
    planned = [set(rig.counts())]
    for _ in range(5):
        rig.step(max_tokens=2)
        assert rig.plan.num_tokens == 2
        planned.append(set(rig.counts()))
    assert planned[1] | planned[2] | planned[3] == {0, 1, 2, 3, 4}
    assert rig.scheduler.plan(max_tokens=0).is_empty


def test_without_chunked_prefill_a_prompt_is_computed_whole():
    rig = Rig(max_num_batched_tokens=10, chunked_prefill=False)
    rig.add([1] * 6)
    rig.add([2] * 6)
    rig.step(max_tokens=2)
    assert rig.counts() == {0: 6}
    rig.step()
    assert rig.counts() == {0: 1, 1: 6}
    with pytest.raises(BadRequest, match=r"The prompt has 11 tokens; without chunked prefill at most .* \(10\)"):
        rig.add([3] * 11)


def test_without_chunked_prefill_what_has_outgrown_the_budget_is_recomputed_in_parts():
    rig = Rig(num_pages=4, page_size=4, max_num_batched_tokens=6, chunked_prefill=False, caching=False)
    rig.add([1] * 3, {"max_tokens": 12})
    rig.add([2] * 5, {"max_tokens": 9})
    rig.run()
    assert rig.stats().num_preemptions_recompute_total > 0
    assert (len(rig.output("r0")), len(rig.output("r1"))) == (12, 9)


def test_no_more_seqs_run_than_may():
    rig = Rig(max_num_seqs=2)
    for i in range(4):
        rig.add([i] * 3, {"max_tokens": 2})
    rig.step()
    assert (rig.stats().num_running, rig.stats().num_waiting) == (2, 2)
    rig.run()
    assert rig.order() == ["r0", "r1", "r2", "r3"]


def test_a_seq_that_is_not_ready_does_not_block_others():
    unready = {"r0"}
    rig = Rig(try_admit=lambda request: Admission.WAIT if request.id in unready else Admission.READY)
    rig.add([1])
    rig.add([2])
    rig.step()
    assert set(rig.counts()) == {1}
    unready.clear()
    rig.step()
    assert set(rig.counts()) == {0, 1}

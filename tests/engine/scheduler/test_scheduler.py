"""The scheduler's own part: what is refused, policies that fail, figures. `test_planner` has what a step computes."""

import pickle
from types import SimpleNamespace

import pytest
from scheduler_invariants import check_scheduler
from scheduler_rig import Rig

from quire.engine.scheduler.policy import Policy
from quire.errors import BadRequest, Overloaded, PluginFailed, QuireError
from quire.hooks.call_stats import PluginCallStats
from quire.records import Registry
from quire.types import AdapterRef, WeightedAdapter
from quire_plugins.policies import quire_scheduler_policies


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "message"),
    [
        (0, 4, "The prompt has no tokens"),
        (60, 1, "The prompt has 60 tokens; with the output at most 60 fit this model"),
        (61, 0, "The prompt has 61 tokens"),
        (20, 14, "20 prompt tokens and at most 14 new ones can never fit the KV cache, which has 32 slots"),
        (33, None, "33 prompt tokens and at most None new ones can never fit"),
    ],
)
def test_what_can_never_be_answered_is_refused_at_once(prompt_len, max_tokens, message):
    rig = Rig(num_pages=8, page_size=4, max_model_len=60)
    with pytest.raises(BadRequest, match=message):
        rig.add([1] * prompt_len, {"max_tokens": max_tokens})
    assert not rig.scheduler.has_work


def test_what_just_fits_is_answered_in_full():
    rig = Rig(num_pages=8, page_size=4, max_model_len=60)
    full = rig.add([1] * 20, {"max_tokens": 13})
    rig.run()
    assert len(rig.output(full)) == 13
    open_end = rig.add([1] * 20, {"max_tokens": None})
    rig.run()
    assert (len(rig.output(open_end)), rig.last(open_end).finish_reason) == (13, "length")


def test_ids_in_use_and_a_full_queue_are_refused():
    rig = Rig(max_num_queued_reqs=2)
    rig.add([1], request_id="x")
    with pytest.raises(BadRequest, match="'x' is being answered"):
        rig.add([1], request_id="x")
    rig.add([2])
    with pytest.raises(Overloaded, match="2 requests are queued, the most allowed"):
        rig.add([3])
    rig.run()
    rig.add([1], request_id="x")
    rig.run()
    assert rig.order().count("x") == 2


def test_rows_of_ended_requests_are_work_but_no_requests():
    """An engine whose caller takes no more steps, as after an offline call, is not busy."""
    rig = Rig()
    rig.add([1, 2, 3], {"max_tokens": 1})
    assert rig.scheduler.has_requests
    rig.step()
    assert (rig.scheduler.has_requests, rig.scheduler.has_work) == (False, True)
    rig.step()
    assert not rig.scheduler.has_work


class Failing:
    """A policy whose sort keys raise on demand."""

    def __init__(self):
        self.fails = False

    def admit_key(self, seq):
        if self.fails:
            raise ValueError("no idea")
        return seq.arrival

    victim_key = admit_key


def test_a_policy_that_fails_refuses_one_request_and_never_stops_the_others(caplog):
    policy = Failing()
    rig = Rig(num_pages=6, page_size=2, policy=policy, caching=False)
    rig.add([1, 2, 3, 4], {"max_tokens": 8})
    rig.add([5, 6, 7, 8], {"max_tokens": 4})
    policy.fails = True
    with pytest.raises(PluginFailed, match="Plugin 'Failing' failed: ValueError: no idea"):
        rig.add([9])
    rig.run()
    assert rig.order() == ["r0", "r1"]
    assert "failed to choose a victim" in caplog.text
    assert "goes to the front of the queue because the scheduling policy failed" in caplog.text


def test_a_policy_that_only_fails_is_switched_off_and_seqs_go_in_order_of_arrival():
    policy = Policy(Registry(counter=PluginCallStats(max_faults=2)), "fussy", failing := Failing())
    rig = Rig(policy=policy, max_num_seqs=1)
    rig.add([1])
    failing.fails = True
    for _ in range(2):
        with pytest.raises(PluginFailed, match="Plugin 'fussy' failed"):
            rig.add([9])
    rig.add([2])
    rig.add([3])
    rig.run()
    assert (policy.off, rig.order()) == (True, ["r0", "r3", "r4"])


def test_keys_that_cannot_be_compared_are_the_plugins_fault():
    counter = PluginCallStats()
    mixed = SimpleNamespace(admit_key=lambda seq: seq.adapter or seq.arrival, victim_key=lambda seq: 0)
    rig = Rig(policy=Policy(Registry(counter=counter), "mixed", mixed))
    rig.add([1])
    rig.add([2], adapters=(WeightedAdapter(AdapterRef(name="a")),))
    rig.run()
    assert rig.order() == ["r0", "r1"]
    assert counter.snapshot()[0]["errors"] == 1


def test_figures_add_up():
    rig = Rig(num_pages=16, page_size=4)
    rig.add(range(10), {"n": 2, "max_tokens": 5})
    rig.step()
    rig.step()
    stats = rig.stats()
    assert (stats.num_pages, stats.num_pages_used, stats.num_slots_used) == (16, 4, 12)
    assert stats.iteration_tokens == (9, 2)
    rig.run()
    stats = rig.stats()
    assert (stats.num_prompt_tokens_total, stats.num_generated_tokens_total) == (10, 10)
    assert (stats.num_pages_used, stats.num_slots_used, stats.num_steps_total) == (0, 0, 6)
    assert stats.num_pages_cached == rig.scheduler.reset_prefix_cache() > 0
    assert rig.stats().num_pages_cached == 0


def test_a_plan_can_be_pickled():
    rig = Rig()
    rig.add(range(5), adapters=(WeightedAdapter(AdapterRef(name="a")),))
    rig.step()
    assert pickle.loads(pickle.dumps(rig.plan)) == rig.plan


def test_both_policies_are_records():
    assert [policy.name for policy in quire_scheduler_policies()] == ["fcfs", "priority"]


def test_after_a_failed_step_its_requests_end_with_the_error_and_the_others_go_on():
    rig = Rig(max_num_seqs=2)
    rig.add([1, 2], {"n": 2})
    rig.add([3, 4])
    rig.step()
    rig.step()
    plan = rig.scheduler.plan()
    assert len(plan.chunks) == 2
    deltas = rig.scheduler.fail_begun(QuireError("broken"))
    assert [(d.request_id, d.index, d.error) for d in deltas] == [("r0", i, ("QuireError", "broken")) for i in (0, 1)]
    check_scheduler(rig.scheduler)
    rig.run()
    assert (rig.order(), len(rig.output("r1"))) == (["r1"], 4)

"""The scheduler under random load: invariants after every step, right K and V under every position, right answers."""

import random

import pytest
from fake_runner import VOCAB, JumpingRunner
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scheduler_invariants import check_scheduler
from scheduler_world import POLICIES, World

from quire.engine.scheduler.limits import SchedulerLimits
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.scheduler import Scheduler
from quire.params.sampling import SamplingParams
from quire.types import Prompt, Request


class Load(RuleBasedStateMachine):
    """Arrivals, aborts, refusals to begin and steps in any order."""

    @initialize(seed=st.integers(0, 2**64))
    def begin(self, seed):
        self.world = World(random.Random(seed))

    @rule(count=st.integers(1, 4))
    def arrive(self, count):
        for _ in range(count):
            self.world.add()

    @rule()
    def abort(self):
        self.world.abort()

    @rule()
    def block(self):
        self.world.block()

    @rule(count=st.integers(1, 5), max_tokens=st.one_of(st.none(), st.integers(1, 6)), abort=st.booleans())
    def step(self, count, max_tokens, abort):
        for _ in range(count):
            self.world.step(max_tokens, abort)

    @invariant()
    def consistent(self):
        check_scheduler(self.world.scheduler)

    def teardown(self):
        if hasattr(self, "world"):
            self.world.finish()


Load.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
TestLoad = Load.TestCase


def test_hundreds_of_requests_get_what_they_would_get_alone():
    recomputes = swaps = cached = copies = requests = lost = 0
    states = []
    for seed in range(20):
        choose = random.Random(seed)
        world = World(choose, caches_states=seed % 3 == 2)
        for _ in range(60):
            world.add()
            for _ in range(choose.choice([0, 1, 2, 5])):
                world.step(choose.choice([None, None, choose.randint(1, 6)]), abort=choose.random() < 0.03)
                check_scheduler(world.scheduler)
        world.finish()
        stats = world.scheduler.stats("m")
        requests += len(world.accepted)
        recomputes += stats.num_preemptions_recompute_total
        swaps += stats.num_preemptions_swap_total
        cached += stats.num_cached_tokens_total
        copies += world.runner.num_copies
        lost += world.runner.num_lost
        if stats.state is not None:
            assert stats.state.num_slots_used == 0
            states.append(stats.state)
        assert (stats.num_running, stats.num_waiting, stats.num_swapped, stats.num_pages_used) == (0, 0, 0, 0)
    assert requests > 300
    assert min(recomputes, swaps, cached, copies) > 20, "the load must reach every mechanism"
    assert min(2 * lost, sum(s.num_hits_total for s in states), sum(s.num_checkpoints_total for s in states)) > 20


@pytest.mark.parametrize("policy", POLICIES)
def test_no_request_starves_behind_a_stream_of_others(policy):
    limits = SchedulerLimits(max_model_len=60, max_num_seqs=3, max_num_batched_tokens=4)
    scheduler = Scheduler(PagePool(12, 4), POLICIES[policy], limits)
    runner = JumpingRunner(12, 4, 0, 3, 4)
    first = Request(id="first", prompt=Prompt(token_ids=(1,) * 30), params=SamplingParams(max_tokens=10))
    scheduler.add(first)
    ended: list[str] = []
    for i in range(80):
        prompt = Prompt(token_ids=(i % VOCAB, 2, 3))
        scheduler.add(Request(id=f"s{i}", prompt=prompt, params=SamplingParams(max_tokens=4)))
        plan = scheduler.plan()
        ended += [delta.request_id for delta in scheduler.commit(plan, runner.run(plan)) if delta.finish_reason]
    assert "first" in ended or policy == "contrary"
    while scheduler.has_work:
        plan = scheduler.plan()
        ended += [delta.request_id for delta in scheduler.commit(plan, runner.run(plan)) if delta.finish_reason]
    assert len(set(ended)) == len(ended) == 81

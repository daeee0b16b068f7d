"""What requests cost: their shares of steps, by tokens, in every delta."""

import pytest
from scheduler_rig import Rig

from quire.params.sampling import SamplingParams


def run(rig, token_s=1.0):
    """Steps until all requests have ended, with `token_s` seconds for each token; the last delta of each request."""
    last, computed = {}, 0
    while rig.scheduler.has_work:
        plan = rig.scheduler.plan()
        computed += plan.num_tokens
        for delta in rig.scheduler.commit(plan, rig.runner.run(plan), token_s):
            last[delta.request_id] = delta
    return last, computed


def test_requests_share_the_seconds_of_steps_by_the_tokens_computed_for_them():
    rig = Rig(max_num_batched_tokens=16)
    long, short = rig.add(range(1, 41), {"max_tokens": 2}), rig.add([7, 8, 9], {"max_tokens": 5})
    last, computed = run(rig)
    assert last[long].cost.device_s == 40 + 1  # the last token is sampled, not computed
    assert last[short].cost.device_s == 3 + 4
    assert sum(delta.cost.device_s for delta in last.values()) == computed


def test_cached_tokens_cost_nothing_and_forks_cost_their_request():
    rig = Rig()
    first = rig.add(range(1, 18), {"max_tokens": 1})
    assert run(rig)[0][first].cost.device_s == 17
    again = rig.add(range(1, 18), SamplingParams(n=3, max_tokens=2, ignore_eos=True))
    last, computed = run(rig, 0.5)
    assert last[again].cost.device_s == pytest.approx(0.5 * computed)
    assert computed < 17

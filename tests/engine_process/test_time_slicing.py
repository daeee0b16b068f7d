import itertools
from statistics import median

import pytest

from quire.engine_process.pacing.time_slicing import MIN_TOKENS, TimeSlicer


def run(turns, cost_s, until_s, active=lambda name, now: True):
    """Step models whose steps take `cost_s(name, tokens)`; the times at which each ended a step."""
    now, ends = 0.0, {name: [] for name in cost_s}
    while now < until_s:
        names = [name for name in cost_s if active(name, now)]
        name = turns.next(names)
        limit = turns.limit(name, 0) if len(names) > 1 else None
        seconds = cost_s[name](limit)
        now += seconds
        ends[name].append(now)
        turns.record(name, seconds, 2048 if limit is None else limit, alone=len(names) == 1)
    return ends


def gaps(ends):
    return [after - before for before, after in itertools.pairwise(ends)]


def two(turns):
    for name in ("quiet", "busy"):
        turns.add(name, 2048)
    return turns


def test_without_work_no_process_has_a_time_slice():
    assert two(TimeSlicer()).next([]) is None


def test_seconds_are_shared_evenly_whatever_the_length_of_a_step():
    ends = run(two(TimeSlicer()), {"quiet": lambda _: 0.01, "busy": lambda _: 0.07}, 100)
    used = {name: len(ends[name]) * cost for name, cost in (("quiet", 0.01), ("busy", 0.07))}
    assert used["quiet"] == pytest.approx(used["busy"], rel=0.01)


@pytest.mark.parametrize(
    "busy_s",
    [0.001, 0.002, 0.003, 0.0035, 0.004, 0.005, 0.007, 0.01, 0.012, 0.015, 0.019, 0.026, 0.028, 0.03, 0.3, 2.0],
)
def test_a_long_batch_beside_it_at_most_doubles_a_models_median_time_between_tokens(busy_s):
    ends = run(two(TimeSlicer()), {"quiet": lambda _: 0.01, "busy": lambda _: busy_s}, 60)
    assert median(gaps(ends["quiet"])) <= 2.2 * 0.01


def test_long_prompts_beside_it_do_not_hold_a_model_up_for_long():
    def prefill(limit):
        return (2048 if limit is None else min(limit, 2048)) * 0.001

    ends = run(two(TimeSlicer(max_step_s=0.1)), {"quiet": lambda _: 0.01, "busy": prefill}, 30)
    settled = gaps(ends["quiet"])[200:]
    assert max(settled) <= 0.128 + 0.011  # never below the least limit: 128 tokens of 1 ms
    assert median(settled) <= 2.2 * 0.01


def test_the_limit_is_what_the_model_computed_lately_within_the_time_of_a_step():
    turns = two(TimeSlicer(max_step_s=0.1, first_limit=512))
    limits = [turns.limit("busy", 0)]
    for seconds in (0.256, 0.256, *[0.1] * 20):
        turns.record("busy", seconds, 512, alone=False)
        limits.append(turns.limit("busy", 0))
    assert limits[:3] == [512, 200, 200]
    assert limits[3:] == sorted(limits[3:])
    assert 500 < limits[-1] <= 512


def test_steps_of_few_tokens_say_nothing_about_the_speed_of_prompts():
    turns = two(TimeSlicer(max_step_s=0.1, first_limit=512))
    for _ in range(50):
        turns.record("busy", 0.05, MIN_TOKENS - 1, alone=True)
    assert turns.limit("busy", 5) == 512


def test_a_slow_model_gets_tokens_for_prompts_beside_one_for_each_stream():
    turns = two(TimeSlicer(max_step_s=0.1))
    turns.record("busy", 30.0, 2048, alone=True)
    assert turns.limit("busy", 40) == MIN_TOKENS + 40
    turns.add("narrow", 64)
    turns.record("narrow", 30.0, 64, alone=True)
    assert turns.limit("narrow", 40) == 64


def test_idleness_earns_no_credit():
    turns = two(TimeSlicer())
    run(turns, {"busy": lambda _: 0.1}, 100)
    ends = run(turns, {"quiet": lambda _: 0.1, "busy": lambda _: 0.1}, 10)
    assert abs(len(ends["quiet"]) - len(ends["busy"])) <= 2


def test_no_credit_is_earned_while_both_are_idle():
    turns = two(TimeSlicer())
    run(turns, {"busy": lambda _: 0.1}, 100)
    assert turns.next([]) is None
    ends = run(turns, {"quiet": lambda _: 0.1, "busy": lambda _: 0.1}, 10)
    assert abs(len(ends["quiet"]) - len(ends["busy"])) <= 2


def test_a_model_that_comes_and_goes_gets_no_more_than_its_share():
    ends = run(
        two(TimeSlicer()),
        {"busy": lambda _: 0.01, "quiet": lambda _: 0.01},
        20,
        active=lambda name, now: name == "busy" or int(now * 10) % 2 == 0,
    )
    assert len(ends["quiet"]) <= len(ends["busy"])


def test_a_model_that_left_is_forgotten():
    turns = two(TimeSlicer())
    turns.next(["quiet", "busy"])
    turns.remove("quiet")
    turns.add("quiet", 2)
    turns.remove("quiet")
    assert turns.next(["busy"]) == "busy"

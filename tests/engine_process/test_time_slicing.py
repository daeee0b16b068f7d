import itertools
from statistics import median

import pytest

from quire.engine_process.pacing.time_slicing import MIN_TOKENS, TimeSlicer


def run(turns, cost_s, until_s, active=lambda name, now: True, streams=None, beside_load=False):
    """Step models whose steps take `cost_s(name, tokens)`; the times at which each ended a step.

    streams: numbers of them by model; the other models compute prompts. beside_load: whether a model is being loaded.
    """
    streams = streams or {}
    now, ends = 0.0, {name: [] for name in cost_s}
    while now < until_s:
        names = [name for name in cost_s if active(name, now)]
        name = turns.next(names, beside_load)
        generating = streams.get(name, 0)
        others = [other for other in names if other != name and other in streams]
        limit = turns.limit(name, generating, others) if len(names) > 1 else None
        seconds = cost_s[name](limit)
        now += seconds
        ends[name].append(now)
        tokens = generating or (2048 if limit is None else limit)
        turns.record(name, seconds, tokens, alone=len(names) == 1, num_generating=generating)
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
    streams = {"quiet": 1, "busy": 64}
    ends = run(two(TimeSlicer()), {"quiet": lambda _: 0.01, "busy": lambda _: busy_s}, 60, streams=streams)
    assert median(gaps(ends["quiet"])) <= 2.2 * 0.01


def test_the_more_models_have_streams_the_fewer_steps_each_has_in_a_row():
    for count, longest in ((2, 4), (3, 5), (4, 4), (6, 6)):
        names = [str(number) for number in range(count)]
        turns = TimeSlicer()
        for name in names:
            turns.add(name, 2048)
        ends = run(turns, dict.fromkeys(names, lambda _: 0.01), 10, streams=dict.fromkeys(names, 1))
        assert all(max(gaps(ends[name])[5:]) <= longest * 0.01 + 1e-6 for name in names), count


def test_models_do_not_have_two_slices_in_a_row_after_a_step_of_another_was_held_up():
    names, costs = ("quiet", "busy"), {"quiet": 0.01, "busy": 0.0099}
    held_up = {20, 50, 80}

    def cost(name):
        numbers = itertools.count()
        return lambda _: 0.1 if next(numbers) in held_up and name == "quiet" else costs[name]

    ends = run(two(TimeSlicer()), {name: cost(name) for name in names}, 3, streams=dict.fromkeys(names, 1))
    usual = [gap for gap in gaps(ends["quiet"])[5:] if gap < 0.09]
    assert len(usual) > 100
    assert max(usual) <= 0.01 + 4 * 0.0099 + 1e-6


@pytest.mark.parametrize("count", [2, 3, 5])
def test_models_take_turns_beside_the_load_of_another(count):
    names = [str(number) for number in range(count)]
    turns = TimeSlicer()
    for name in names:
        turns.add(name, 2048)
    costs, streams = dict.fromkeys(names, lambda _: 0.01), dict.fromkeys(names, 1)
    ends = run(turns, costs, 10, streams=streams, beside_load=True)
    assert all(max(gaps(ends[name])[5:]) <= count * 0.01 + 1e-6 for name in names)


@pytest.mark.parametrize(("token_s", "longest_s"), [(0.001, 0.032), (0.0002, 0.0305)])
def test_long_prompts_beside_it_hold_a_model_up_for_three_of_its_steps_or_the_least_tokens(token_s, longest_s):
    def prefill(limit):
        return (2048 if limit is None else min(limit, 2048)) * token_s

    costs = {"quiet": lambda _: 0.01, "busy": prefill, "slow": prefill}
    turns = two(TimeSlicer(max_step_s=0.1))
    turns.add("slow", 2048)
    seconds = gaps(run(turns, costs, 30, streams={"quiet": 1})["quiet"])
    assert max(seconds[50:]) <= 2 * longest_s + 0.011, "two models with prompts have a step each"
    assert sum(gap <= 0.011 for gap in seconds) >= 0.45 * len(seconds), "it has two steps in a row"


def test_a_device_that_computes_prompts_fast_gets_long_ones_beside_other_models():
    def prefill(limit):
        return 0.01 + 1e-5 * (8192 if limit is None else limit)

    limits = []
    turns = two(TimeSlicer(max_step_s=0.1))
    turns.add("busy", 8192)
    run(
        turns,
        {"quiet": lambda _: 0.01, "busy": lambda limit: limits.append(limit) or prefill(limit)},
        3,
        streams={"quiet": 1},
    )
    assert limits[0] == 32
    assert 1500 < limits[-1] <= 3000, "three steps of the other model are 30 ms"


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

"""How many tokens of a step, and which steps, the background has beside other requests."""

import pytest

from quire.engine_process.background import CYCLE, MAX_BESIDE, OTHER_MODELS_SHARE, QUIET_S, BackgroundPacer
from quire.types import background

BATCH = background("key:a")


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pacer(clock):
    return BackgroundPacer(clock)


def settle(pacer, seconds_of, cycles=200):
    """Tokens beside the others after many steps that take `seconds_of(tokens)`."""
    found = []
    for _ in range(cycles * CYCLE):
        tokens = pacer.max_beside("m")
        found.append(tokens)
        pacer.record("m", seconds_of(tokens))
    return found[-10 * CYCLE :]


def test_steps_beside_other_requests_have_as_many_tokens_as_slow_them_down_by_a_tenth(pacer):
    pacer.begin("m", "a")
    pacer.begin("m", BATCH)
    found = settle(pacer, lambda tokens: 0.01 + tokens * 0.0001)
    assert 6 <= max(found) <= 11
    assert found.count(0) == pytest.approx(len(found) / 4)


def test_they_have_one_token_however_slow_it_is_and_never_more_than_the_bound(pacer):
    pacer.begin("m", "a")
    pacer.begin("m", BATCH)
    assert max(settle(pacer, lambda tokens: 0.01 + tokens)) == 1
    assert max(settle(pacer, lambda tokens: 0.01)) == MAX_BESIDE


def test_a_model_has_whole_steps_for_the_background_when_it_was_quiet_for_a_while(pacer, clock):
    pacer.begin("m", BATCH)
    assert pacer.max_tokens("m", None, 128) == 128
    pacer.begin("m", "a")
    assert pacer.max_tokens("m", 512, 128) == 512, "of others, who have few tokens for the background"
    pacer.end("m", "a")
    assert pacer.max_tokens("m", None, 128) == 1, "others may come back"
    clock.now += QUIET_S
    assert pacer.max_tokens("m", None, 128) == 128
    pacer.end("m", BATCH)
    assert not pacer.has_behind("m")


def test_work_in_the_background_for_a_model_beside_others_has_a_small_share_of_the_time(pacer, clock):
    pacer.begin("busy", "a")
    pacer.begin("m", BATCH)
    used, begin = {"busy": 0.0, "m": 0.0}, clock.now
    while clock.now < begin + 100:
        name = pacer.may_step(["busy", "m"])[-1]
        clock.now += 0.02
        pacer.record(name, 0.02)
        used[name] += 0.02
    assert used["m"] / 100 == pytest.approx(OTHER_MODELS_SHARE, rel=0.1)
    assert pacer.may_step(["m"]) == ["m"], "when nothing else can be computed"

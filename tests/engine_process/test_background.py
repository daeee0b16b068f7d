"""How many tokens of a step, and which steps, the background has beside other requests."""

import pytest

from quire.engine_process.background import (
    EVERY,
    MIN_TOKENS,
    OTHER_MODELS_SHARE,
    QUIET_S,
    QUIET_TOKENS,
    SHORTER,
    BackgroundPacer,
)
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


def limits_of(pacer, count, short=400):
    """The limits of the next steps of the model `m`."""
    found = []
    for _ in range(count):
        found.append(pacer.limits("m", 512, short))
        pacer.record("m", 0.003)
    return found


def test_one_of_many_steps_beside_other_requests_has_tokens_for_the_background(pacer):
    pacer.begin("m", "a")
    assert limits_of(pacer, 3) == [(512, 0)] * 3, "there is no background"
    pacer.begin("m", BATCH)
    found = limits_of(pacer, 3 * EVERY)
    assert found == ([(512, 0)] * (EVERY - 1) + [(512, 400 // SHORTER)]) * 3
    assert limits_of(pacer, EVERY, short=16)[-1] == (512, MIN_TOKENS)


def test_a_model_has_whole_steps_for_the_background_when_it_was_quiet_for_a_while(pacer, clock):
    pacer.begin("m", BATCH)
    assert pacer.limits("m", None, 128) == (128, 0)
    pacer.begin("m", "a")
    assert pacer.limits("m", None, 128) == (None, 0), "prompts of others have whole steps"
    pacer.end("m", "a")
    assert pacer.limits("m", None, 128) == (QUIET_TOKENS, 0), "others may come back"
    clock.now += QUIET_S
    assert pacer.limits("m", None, 128) == (128, 0)
    pacer.end("m", BATCH)
    assert pacer.limits("m", None, 128) == (None, 0)


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

"""How many tokens of a step, and which steps, the background has beside other requests."""

import pytest

from quire.engine_process.pacing.background import (
    CLEAN,
    CYCLE,
    EVERY,
    MAX_BESIDE,
    MIN_TOKENS,
    OTHER_MODELS_SHARE,
    QUIET_S,
    QUIET_TOKENS,
    SHORTER,
    TRY_EVERY,
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


def run(pacer, count, seconds_of, short=400):
    """Tokens for the background in the next steps of the model `m`, which take `seconds_of(tokens)`."""
    found = []
    for _ in range(count):
        limit, tokens = pacer.limits("m", 512, short)
        assert limit == 512
        found.append(tokens)
        pacer.record("m", seconds_of(tokens))
    return found


def test_steps_beside_other_requests_have_as_many_tokens_as_slow_them_down_by_a_tenth(pacer):
    pacer.begin("m", "a")
    assert run(pacer, 3, lambda tokens: 0.003) == [0] * 3, "there is no background"
    pacer.begin("m", BATCH)
    run(pacer, 100 * CYCLE, lambda tokens: 0.01 + tokens * 0.0001)
    found = run(pacer, 20 * CYCLE, lambda tokens: 0.01 + tokens * 0.0001)
    few = [tokens for tokens in found if tokens != 400 // SHORTER]
    assert 6 <= max(few) <= 11
    assert few.count(0) == pytest.approx(len(few) * CLEAN / CYCLE, rel=0.1)
    run(pacer, 200 * CYCLE, lambda tokens: 0.01)
    assert MAX_BESIDE in run(pacer, CYCLE, lambda tokens: 0.01)


def test_where_a_token_is_too_slow_one_of_many_steps_has_many_until_it_is_fast(pacer):
    pacer.begin("m", "a")
    pacer.begin("m", BATCH)
    run(pacer, 2 * EVERY, lambda tokens: 0.01 + 0.004 * (tokens > 0))
    found = run(pacer, 20 * TRY_EVERY, lambda tokens: 0.01 + 0.004 * (tokens > 0))
    assert found.count(400 // SHORTER) == len(found) // EVERY
    assert found.count(1) < len(found) / 300, "tries"
    assert found.count(0) + found.count(1) + found.count(100) == len(found)
    assert max(run(pacer, EVERY, lambda tokens: 0.01, short=16)) == MIN_TOKENS
    run(pacer, 5 * TRY_EVERY, lambda tokens: 0.01)
    assert run(pacer, CYCLE, lambda tokens: 0.01)[0] > 1


def test_a_model_has_whole_steps_for_the_background_when_it_was_quiet_for_a_while(pacer, clock):
    pacer.begin("m", BATCH)
    assert pacer.limits("m", None, 128) == (128, 0)
    pacer.begin("m", "a")
    assert pacer.limits("m", None, 128) == (None, 1), "prompts of others have whole steps"
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

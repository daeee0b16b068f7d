"""Who leaves memory and what is loaded next, for any models."""

import math

from hypothesis import given, strategies as st

from quire.server.residency.policy import (
    MAX_OVERTAKEN_S,
    Load,
    Resident,
    Wanted,
    idle_too_long,
    next_deadline,
    next_load,
    who_leaves,
)


@st.composite
def models(draw):
    """Up to 8 models of up to 20 bytes."""
    return [
        Resident(
            name=f"m{number}",
            num_bytes=draw(st.integers(0, 20)),
            last_used=draw(st.integers(0, 10)),
            keep_alive_s=draw(st.sampled_from([0, 5, math.inf])),
            is_fixed=draw(st.booleans()),
            is_busy=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 8)))
    ]


def total(residents, without=()):
    return sum(one.num_bytes for one in residents if one.name not in without)


@given(models(), st.integers(0, 100), st.integers(0, 60))
def test_idle_models_leave_for_what_fits_and_none_that_need_not(residents, limit, needed):
    by_name = {one.name: one for one in residents}
    leaving = who_leaves(residents, limit, needed)
    stay = [one for one in residents if one.is_busy or one.is_fixed]
    if leaving is None:
        assert total(stay) + needed > limit
        return
    assert not any(by_name[name].is_busy or by_name[name].is_fixed for name in leaving)
    assert total(residents, leaving) + needed <= limit
    for name in leaving:
        assert total(residents, set(leaving) - {name}) + needed > limit
    younger = [one for one in residents if one not in stay and one.name not in leaving]
    for name in leaving:  # none that was used longer ago could have left alone instead
        older = [one for one in younger if one.last_used < by_name[name].last_used]
        assert all(total(residents, {*leaving, one.name} - {name}) + needed > limit for one in older)


@given(models(), st.integers(0, 100), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=5))
def test_the_first_that_fits_is_loaded_and_waits_for_none_too_long(residents, limit, sizes):
    wanted = [Wanted(name=f"w{i}", num_bytes=size, since=since) for i, (size, since) in enumerate(sizes)]
    now = 30
    load = next_load(wanted, residents, limit, now)
    fits = {one.name: who_leaves(residents, limit, one.num_bytes) for one in wanted}
    if load is None:
        stuck = [one for one in wanted if now - one.since > MAX_OVERTAKEN_S and one.num_bytes <= limit]
        assert stuck or all(leaving is None for leaving in fits.values())
        return
    assert load == Load(name=load.name, leaving=fits[load.name])
    since = {one.name: one.since for one in wanted}
    for one in wanted:
        if one.since < since[load.name]:
            assert fits[one.name] is None
            assert now - one.since <= MAX_OVERTAKEN_S or one.num_bytes > limit


@given(models(), st.integers(0, 20))
def test_a_model_is_idle_too_long_exactly_when_its_deadline_has_come(residents, now):
    leaving = idle_too_long(residents, now)
    assert leaving == tuple(
        one.name for one in residents if not one.is_busy and one.last_used + one.keep_alive_s <= now
    )
    rest = [one for one in residents if one.name not in leaving]
    assert now < next_deadline(rest)
    if math.isfinite(deadline := next_deadline(rest)):
        assert idle_too_long(rest, deadline)

"""Which models are evicted and which is loaded next, for any models."""

import math

from hypothesis import given, strategies as st

from quire.server.residency.policy import (
    MAX_OVERTAKEN_S,
    Load,
    Resident,
    Wanted,
    idle_too_long,
    models_to_evict,
    next_deadline,
    next_load,
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
def test_idle_models_are_evicted_for_what_fits_and_none_that_could_stay(residents, limit, needed):
    by_name = {one.name: one for one in residents}
    evicted = models_to_evict(residents, limit, needed)
    stay = [one for one in residents if one.is_busy or one.is_fixed]
    if evicted is None:
        assert total(stay) + needed > limit
        return
    assert not any(by_name[name].is_busy or by_name[name].is_fixed for name in evicted)
    assert total(residents, evicted) + needed <= limit
    for name in evicted:
        assert total(residents, set(evicted) - {name}) + needed > limit
    younger = [one for one in residents if one not in stay and one.name not in evicted]
    for name in evicted:  # none that was used longer ago could be evicted alone instead
        older = [one for one in younger if one.last_used < by_name[name].last_used]
        assert all(total(residents, {*evicted, one.name} - {name}) + needed > limit for one in older)


@given(models(), st.integers(0, 100), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 30)), max_size=5))
def test_the_first_that_fits_is_loaded_and_waits_for_none_too_long(residents, limit, sizes):
    wanted = [Wanted(name=f"w{i}", num_bytes=size, since=since) for i, (size, since) in enumerate(sizes)]
    now = 30
    load = next_load(wanted, residents, limit, now)
    fits = {one.name: models_to_evict(residents, limit, one.num_bytes) for one in wanted}
    if load is None:
        stuck = [one for one in wanted if now - one.since > MAX_OVERTAKEN_S and one.num_bytes <= limit]
        assert stuck or all(evicted is None for evicted in fits.values())
        return
    assert load == Load(name=load.name, evicted=fits[load.name])
    since = {one.name: one.since for one in wanted}
    for one in wanted:
        if one.since < since[load.name]:
            assert fits[one.name] is None
            assert now - one.since <= MAX_OVERTAKEN_S or one.num_bytes > limit


@given(models(), st.integers(0, 20))
def test_a_model_is_idle_too_long_exactly_when_its_deadline_has_come(residents, now):
    evicted = idle_too_long(residents, now)
    assert evicted == tuple(
        one.name for one in residents if not one.is_busy and one.last_used + one.keep_alive_s <= now
    )
    rest = [one for one in residents if one.name not in evicted]
    assert now < next_deadline(rest)
    if math.isfinite(deadline := next_deadline(rest)):
        assert idle_too_long(rest, deadline)

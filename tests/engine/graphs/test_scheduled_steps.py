"""Every decode step that the scheduler draws fits a captured step, whatever arrives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings, strategies as st
from scheduler_world import World

from quire.engine.scheduler.limits import SchedulerLimits
from quire.types import Plan
from quire_models.graphs.buckets import bucket_of, buckets


def decode_steps(seed: int, arrivals: Sequence[int]) -> tuple[SchedulerLimits, int, list[Plan]]:
    """The limits and the page size of a scheduler under random load, and its steps of single tokens."""
    world, found = World(random.Random(seed)), list[Plan]()
    run = world.runner.run

    def kept(plan: Plan) -> Any:
        if plan.chunks and all(len(chunk.token_ids) == 1 for chunk in plan.chunks):
            found.append(plan)
        return run(plan)

    world.runner.run = kept  # type: ignore[method-assign]
    for count in arrivals:
        for _ in range(count):
            world.add()
        world.step()
    world.finish()
    return world.limits, world.page_size, found


@given(st.integers(0, 2**64), st.lists(st.integers(0, 3), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_decode_steps_have_a_bucket_and_room_for_their_pages(seed: int, arrivals: list[int]) -> None:
    limits, page_size, plans = decode_steps(seed, arrivals)
    every, columns = buckets(limits.max_num_seqs), -(-limits.max_model_len // page_size)
    for plan in plans:
        bucket = bucket_of(len(plan.chunks), every)
        assert bucket is not None
        assert len(plan.chunks) <= bucket <= limits.max_num_seqs
        assert all(chunk.start // page_size < columns for chunk in plan.chunks)


def test_such_steps_are_drawn() -> None:
    drawn = [decode_steps(seed, [2] * 10)[2] for seed in range(12)]
    assert sum(map(len, drawn)) > 50
    assert {len(plan.chunks) for plans in drawn for plan in plans} >= {1, 2, 3}

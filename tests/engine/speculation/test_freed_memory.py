"""Requests that end or are aborted, with drafts, leave nothing in pools, batch and drafter."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest
from engine_rig import Rig, random_ids, rig_of
from every_drafter import METHODS, drafter_case, num_kept
from hybrid_rig import hybrid_folder, hybrid_registry
from scheduler_invariants import check_scheduler
from scheduler_world import World

from quire.params.sampling import SamplingParams


@pytest.mark.slow
def test_ten_thousand_requests_with_aborts_leave_the_pools_as_they_were() -> None:
    accepted = drafts = with_state = seed = 0
    while accepted < 10_000:
        choose = random.Random(seed)
        world, seed = World(choose), seed + 1
        world.drafting = 0 if world.states and world.most > 1 else choose.choice([0.3, 0.8])
        for _ in range(250):
            world.add()
            for _ in range(choose.choice([0, 0, 1, 2])):
                world.step(abort=choose.random() < 0.3)
            if choose.random() < 0.7:
                world.abort()
        while world.scheduler.has_work or world.in_flight:
            world.abort()
            world.step()
        check_scheduler(world.scheduler)
        pools = [world.scheduler._tables.pool, world.scheduler._tables.host_pool]
        states = world.scheduler._tables.states
        if states is not None:
            with_state += len(world.accepted)
            pools += [states.pool, states.host_pool]
            assert not [*states._kept, *states._sources, *states._swaps_out, *states._swaps_in]
        assert [(pool.num_used, pool.available) for pool in pools] == [(0, pool.num_pages) for pool in pools]
        assert not world.runner.rows
        accepted, drafts = accepted + len(world.accepted), drafts + world.runner.num_drafts
    assert min(drafts, with_state) > 2_000


SIZES: dict[str, Any] = {
    "max_num_seqs": 8,
    "num_pages": 16,
    "max_num_batched_tokens": 40,
    "max_model_len": 120,
}


@pytest.mark.parametrize("kind", ["hybrid", "attention only"])
def test_hundreds_of_aborted_requests_leave_an_engine_as_it_was(tmp_path: Path, kind: str) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
    folder = hybrid_folder(tmp_path, kind)
    with rig_of(folder, hybrid_registry(), load_format="dummy", speculative_config=config, **SIZES) as rig:
        check_aborts_leave_nothing(rig)


@pytest.mark.parametrize("name", METHODS)
def test_hundreds_of_aborted_requests_leave_a_drafter_without_state(tmp_path: Path, name: str) -> None:
    case = drafter_case(name, tmp_path)
    with rig_of(case.folder, speculative_config=dict(case.config), **SIZES) as rig:
        check_aborts_leave_nothing(rig)


def check_aborts_leave_nothing(rig: Rig) -> None:
    rng, engine, most = random.Random(4), cast(Any, rig.engine), 0
    for _ in range(60):
        params = SamplingParams(max_tokens=12, ignore_eos=True, n=rng.choice([1, 1, 2]), temperature=0.3)
        ids = [rig.add(random_ids(rng, 3) * rng.randint(1, 6), params) for _ in range(5)]
        for _ in range(rng.randint(0, 5)):
            engine.step()
            most = max(most, num_kept(engine._speculation._drafter.built))
            if rng.random() < 0.5:
                engine.abort(ids.pop(), rng.choice([None, 0]))
            if not ids:
                break
        for request_id in ids[:3]:
            engine.abort(request_id)
    rig.drain()
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_pages_used, len(engine._runner._batch)) == (0, 0, 0, 0)
    assert stats.state is None or stats.state.num_slots_used == 0
    assert most >= 5
    assert num_kept(engine._speculation._drafter.built) == 0
    speculation = engine._speculation
    lengths = speculation._lengths
    assert not [*speculation._constants, *speculation._predictions._outputs, *lengths._seqs, *lengths._verified]
    engine.reset_prefix_cache()
    assert engine.stats().num_pages_cached == 0

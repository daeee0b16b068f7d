"""Steps of models with state overlap: states, and checkpoints of them, are those of steps one after the other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from engine_rig import Rig, greedy, random_ids, related_prompts
from hybrid_rig import check_greedy, hybrid_engine
from hypothesis import HealthCheck, given, settings, strategies as st
from overlap_rig import PretendedDevice, answers_of, asked, check_answers

PROMPTS = related_prompts(9, seed=3)
SMALL: dict[str, Any] = {"num_pages": 5, "max_num_seqs": 6, "max_model_len": 80, "max_num_batched_tokens": 24}
CHECKPOINTS: dict[str, Any] = {"num_state_checkpoints": 5, "state_checkpoint_interval": 1}
SWAPPING: dict[str, Any] = {"preemption": "swap", "swap_space": 0.01}


@pytest.fixture(scope="module")
def device() -> Iterator[PretendedDevice]:
    with pytest.MonkeyPatch.context() as patch:
        yield PretendedDevice(patch)


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory, device: PretendedDevice) -> Iterator[list[Rig]]:
    """One whose steps follow each other, and two whose steps overlap: one recomputes, and one swaps."""
    root = tmp_path_factory.mktemp("hybrids")
    with ExitStack() as stack:
        made = [stack.enter_context(hybrid_engine(root, **SMALL, **CHECKPOINTS))]
        device.is_used = True
        made += [stack.enter_context(hybrid_engine(root, **SMALL, **CHECKPOINTS, **more)) for more in ({}, SWAPPING)]
        yield made


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(requests=st.lists(asked(PROMPTS, [None]), min_size=1, max_size=7))
def test_answers_are_the_same(rigs: list[Rig], requests: list[Any]) -> None:
    wanted = answers_of(rigs[0], requests, aborts=False)
    for rig in rigs[1:]:
        check_answers(requests, answers_of(rig, requests, aborts=True), wanted)


def test_the_drawn_requests_reached_everything(rigs: list[Rig], device: PretendedDevice) -> None:
    assert device.most_unread == 2
    assert device.num_read > 80
    recomputing, swapping = (rig.engine.stats() for rig in rigs[1:])
    assert recomputing.num_preemptions_recompute_total > 2
    assert swapping.num_preemptions_swap_total > 2
    for stats in (recomputing, swapping):
        assert stats.state is not None
        assert stats.state.num_checkpoints_total > 15
        assert stats.state.num_hits_total > 4


def test_checkpoints_of_generated_tokens_are_found(rigs: list[Rig]) -> None:
    for rig in rigs[1:]:
        prompt = random_ids(random.Random(1), 11)
        answer = rig.tokens([prompt], greedy(24, ignore_eos=True))[0]
        more = [*prompt, *answer, 7]
        request_id = rig.add(more, greedy(3, ignore_eos=True))
        found = rig.drain()[request_id, 0]
        assert found.deltas[0].num_cached_tokens == 32
        check_greedy(rig, more, found.token_ids)


def test_rows_of_a_step_that_raises_are_computed_again(rigs: list[Rig]) -> None:
    rig = rigs[1]
    prompts = [prompt[:6] for prompt in PROMPTS[:3]]
    executor: Any = rig.engine._runner._executor
    model, calls = executor._model, [0]

    def failing(batch: Any) -> Any:
        calls[0] += 1
        if calls[0] == 5:
            raise RuntimeError("once")
        return model(batch)

    executor._model = failing
    try:
        for prompt, tokens in zip(prompts, rig.tokens(prompts, greedy(9, ignore_eos=True)), strict=True):
            check_greedy(rig, prompt, tokens)
    finally:
        executor._model = model
    assert calls[0] > 9
    assert rig.engine.stats().num_pages_used == 0

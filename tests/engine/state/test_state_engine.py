"""Engines on models with state give what one forward over prompt and output gives, whatever happens on the way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Rig, greedy, random_ids, related_prompts
from hybrid_rig import KINDS, check_greedy, check_logprobs, hybrid_engine, lora_on_state
from hypothesis import HealthCheck, given, settings, strategies as st

from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.types import AdapterRef, WeightedAdapter

KINDS_WITH_STATE = [kind for kind in KINDS if kind != "attention only"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hybrids")


@pytest.fixture(scope="module")
def rig(root: Path) -> Iterator[Rig]:
    with hybrid_engine(root) as made:
        yield made


def cached(rig: Rig, prompt: list[int], max_tokens: int = 6) -> int | None:
    """Answer a prompt; how many of its tokens were found in the prefix cache."""
    request_id = rig.add(prompt, greedy(max_tokens, ignore_eos=True))
    answer = rig.drain()[request_id, 0]
    check_greedy(rig, prompt, answer.token_ids)
    return answer.deltas[0].num_cached_tokens


@pytest.mark.parametrize("kind", KINDS_WITH_STATE)
def test_many_requests_at_once(root: Path, kind: str) -> None:
    prompts = related_prompts(16)
    with hybrid_engine(root, kind, max_num_seqs=16, max_num_batched_tokens=64) as rig:
        for prompt, tokens in zip(prompts, rig.tokens(prompts, greedy(24, ignore_eos=True)), strict=True):
            check_greedy(rig, prompt, tokens)
        assert rig.engine.stats().num_running == 0


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 1000), budgets=st.lists(st.integers(1, 13), min_size=1, max_size=6))
def test_chunks_may_be_cut_anywhere(rig: Rig, seed: int, budgets: list[int]) -> None:
    prompts = related_prompts(3, seed)
    ids = [rig.add(prompt, greedy(4, ignore_eos=True)) for prompt in prompts]
    found: dict[str, list[int]] = {request_id: [] for request_id in ids}
    step = 0
    while rig.engine.has_work:
        for delta in rig.engine.step(budgets[step % len(budgets)]):
            found[delta.request_id] += delta.token_ids
        step += 1
    for prompt, request_id in zip(prompts, ids, strict=True):
        check_greedy(rig, prompt, found[request_id])


@pytest.mark.parametrize("kind", KINDS_WITH_STATE)
def test_forks_and_beams_go_on_from_the_state_of_their_parent(root: Path, kind: str) -> None:
    with hybrid_engine(root, kind) as rig:
        prompt = random_ids(random.Random(1), 22)
        sampled = SamplingParams(n=4, seed=3, max_tokens=12, ignore_eos=True, logprobs=0)
        first, second = rig.add(prompt, sampled), rig.add(prompt[:1], sampled)
        beams = rig.add(prompt, BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True))
        answers = rig.drain()
        for index in range(4):
            check_logprobs(rig, prompt, answers[first, index])
            check_logprobs(rig, prompt[:1], answers[second, index])
        for index in range(3):
            tokens, total = answers[beams, index].token_ids, answers[beams, index].last.cumulative_logprob
            alone = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
            scored = rig.add([*prompt, *tokens], alone)
            logprobs = rig.drain()[scored, 0].deltas[0].prompt_logprobs
            assert logprobs is not None
            assert total == pytest.approx(sum(entry.logprob for entry in logprobs[len(prompt) :] if entry), abs=1e-3)


@pytest.mark.parametrize("kind", KINDS_WITH_STATE)
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_preempted_seqs_resume_with_their_state(root: Path, kind: str, preemption: str) -> None:
    swap = {"swap_space": 0.01} if preemption == "swap" else {}
    prompts = related_prompts(8)
    with hybrid_engine(root, kind, num_pages=9, preemption=preemption, max_model_len=100, **swap) as rig:
        for prompt, tokens in zip(prompts, rig.tokens(prompts, greedy(40, ignore_eos=True)), strict=True):
            check_greedy(rig, prompt, tokens)
        stats = rig.engine.stats()
        counts = stats.num_preemptions_recompute_total, stats.num_preemptions_swap_total
        assert counts[preemption == "swap"] > 0


def test_a_prompt_is_found_in_the_cache_up_to_its_last_page_or_where_prompts_part(root: Path) -> None:
    with hybrid_engine(root, page_size=4, state_checkpoint_interval=8) as rig:
        rng = random.Random(5)
        shared, tails = random_ids(rng, 22), [random_ids(rng, 9) for _ in range(4)]
        assert cached(rig, shared + tails[0]) == 0
        assert cached(rig, shared + tails[0]) == 28  # the last full page of 31 tokens
        assert cached(rig, shared + tails[0] + tails[1]) == 28
        assert cached(rig, shared + tails[2]) == 0  # it takes a checkpoint where the cached pages end
        assert cached(rig, shared + tails[3]) == 20
        long = random_ids(rng, 75)
        assert cached(rig, long) == 0
        assert cached(rig, long[:50]) == 32  # checkpoints every 8 pages
        state = rig.engine.stats().state
        assert state is not None
        assert state.num_hits_total == 4
        rig.engine.reset_prefix_cache()
        assert cached(rig, long) == 0


def test_requests_with_one_prefix_wait_for_its_checkpoint(root: Path) -> None:
    """W4: many requests at once compute the prefix that they share once, as with attention only."""
    rates = {}
    for kind in ("attention only", "hybrid"):
        with hybrid_engine(root, kind, num_pages=100, max_num_batched_tokens=256) as rig:
            rng = random.Random(7)
            shared = random_ids(rng, 60)
            prompts = [shared + random_ids(rng, 10) for _ in range(24)]
            for prompt, tokens in zip(prompts, rig.tokens(prompts, greedy(4, ignore_eos=True)), strict=True):
                check_greedy(rig, prompt, tokens)
            stats = rig.engine.stats()
            rates[kind] = stats.num_cached_tokens_total / stats.num_queried_tokens_total
    assert rates["hybrid"] == rates["attention only"] > 0.5


def test_few_checkpoints_are_replaced(root: Path) -> None:
    with hybrid_engine(root, num_state_checkpoints=2, max_num_seqs=3) as rig:
        prompts = related_prompts(30, seed=4)
        for prompt, tokens in zip(prompts, rig.tokens(prompts, greedy(6, ignore_eos=True)), strict=True):
            check_greedy(rig, prompt, tokens)
        state = rig.engine.stats().state
        assert state is not None
        assert (state.num_slots, state.num_slots_used) == (5, 0)
        assert state.num_checkpoints <= 5


def test_aborts_free_slots(root: Path) -> None:
    with hybrid_engine(root, max_num_seqs=4) as rig:
        rng = random.Random(2)
        for round_ in range(12):
            params = SamplingParams(max_tokens=9, ignore_eos=True, n=2)
            ids = [rig.add(random_ids(rng, 30), params) for _ in range(3)]
            for _ in range(round_ % 5):
                rig.engine.step()
            for request_id in ids:
                rig.engine.abort(request_id)
        assert cached(rig, random_ids(rng, 20)) == 0
        state = rig.engine.stats().state
        assert state is not None
        assert state.num_slots_used == 0


def test_batch_invariant_engines_give_the_same_bits(root: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True, logprobs=0)
    prompts = related_prompts(5)
    with hybrid_engine(root, batch_invariant=True) as rig:
        ids = [rig.add(prompt, params) for prompt in prompts]
        together = rig.drain()
        rig.engine.reset_prefix_cache()
        for request_id, prompt in zip(ids, prompts, strict=True):
            alone = rig.add(prompt, params)
            assert rig.drain()[alone, 0].logprobs == together[request_id, 0].logprobs
            check_greedy(rig, prompt, together[request_id, 0].token_ids)


class Breaking:
    """A block's forward that raises when the batch has a token, after the block has advanced all states."""

    def __init__(self, block: Any, token: int) -> None:
        self.forward, self.token, self.times = block.forward, token, 0

    def __call__(self, x: Any, fwd: Any) -> Any:
        found = self.forward(x, fwd)
        if self.token in fwd.tokens.tolist():
            self.times += 1
            raise RuntimeError("this token breaks the model")
        return found


def test_only_the_request_that_makes_a_step_raise_fails(root: Path) -> None:
    with hybrid_engine(root, max_num_batched_tokens=40) as rig:
        prompts = [[t for t in prompt if t != 255] for prompt in related_prompts(5)]
        params = greedy(30, ignore_eos=True, logit_bias={255: -100.0})
        ids = [rig.add(prompt, params) for prompt in prompts]
        begun = [delta for _ in range(8) for delta in rig.engine.step()]
        block: Any = rig.engine.loaded.module.blocks[2]
        block.forward = Breaking(block, 255)
        broken = rig.add([*prompts[0], *range(40), 255, 1], params)
        answers = rig.drain()
        assert block.forward.times == 2  # with the others, then alone
        assert answers[broken, 0].last.finish_reason == "error"
        for request_id, prompt in zip(ids, prompts, strict=True):
            tokens = [t for delta in begun if delta.request_id == request_id for t in delta.token_ids]
            assert answers[request_id, 0].last.finish_reason == "length"
            check_greedy(rig, prompt, tokens + answers[request_id, 0].token_ids)


def test_adapters_have_states_of_their_own(root: Path) -> None:
    with hybrid_engine(root, page_size=4) as rig:
        adapter = lora_on_state(root / "adapter")
        info = rig.engine.load_adapter("a", adapter)
        use = (WeightedAdapter(AdapterRef(name="a", revision=info.revision)),)
        prompt = random_ids(random.Random(8), 30)
        found = []
        for adapters in ((), use, (), use):
            request_id = rig.add(prompt, greedy(12, ignore_eos=True), adapters=adapters)
            answer = rig.drain()[request_id, 0]
            found.append((answer.token_ids, answer.deltas[0].num_cached_tokens))
        base, adapted = found[0][0], found[1][0]
        assert base != adapted
        assert found == [(base, 0), (adapted, 0), (base, 28), (adapted, 28)]
        both = [rig.add(prompt[:n], greedy(12, ignore_eos=True), adapters=a) for n in (30, 21) for a in ((), use)]
        answers = rig.drain()
        assert [answers[request_id, 0].token_ids for request_id in both[:2]] == [base, adapted]

"""The output of a request does not depend on the other requests of its batches."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from engine_rig import Rig, greedy, random_ids, rig_of
from parity_model import Model, total_preemptions

from quire.params.sampling import SamplingParams

# --- an answer does not depend on its neighbours -----------------------------------------------------------

SUBJECTS: dict[str, SamplingParams] = {
    "greedy": greedy(40, ignore_eos=True),
    "greedy with penalties": greedy(40, ignore_eos=True, repetition_penalty=1.2, presence_penalty=0.3),
    "seeded": SamplingParams(max_tokens=40, seed=11, ignore_eos=True),
    "seeded and filtered": SamplingParams(
        max_tokens=40, seed=-5, temperature=0.8, top_k=30, top_p=0.9, min_p=0.01, ignore_eos=True, logprobs=2
    ),
    "seeded and cold": SamplingParams(
        max_tokens=40, seed=3, temperature=0.3, top_p=0.8, frequency_penalty=0.2, ignore_eos=True
    ),
}


def crowd(count: int, seed: int) -> list[tuple[list[int], SamplingParams]]:
    """Random requests of all sorts."""
    rng = random.Random(seed)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 5, "top_k": 7},
        {"logprobs": 5},
        {"top_p": 0.5, "repetition_penalty": 1.5},
        {"n": 3, "min_p": 0.1},
        {"temperature": 0, "prompt_logprobs": 1, "logit_bias": {4: 9.0}},
    ]
    return [
        (
            random_ids(rng, rng.randrange(1, 60)),
            SamplingParams(max_tokens=rng.randrange(1, 50), ignore_eos=True, **kinds[i % len(kinds)]),
        )
        for i in range(count)
    ]


def outputs(rig: Rig, prompt: list[int], company: int = 0, seed: int = 0) -> dict[str, list[int]]:
    """What each of SUBJECTS gives for the prompt, each in the midst of so many others."""
    found = {}
    for number, (name, params) in enumerate(SUBJECTS.items()):
        others = crowd(company, 100 * seed + number)
        for other, kind in others[: company // 2]:
            rig.add(other, kind)
        for _ in range(3 if others else 0):
            rig.engine.step()
        request_id = rig.add(prompt, params)
        for other, kind in others[company // 2 :]:
            rig.add(other, kind)
        found[name] = rig.drain()[request_id, 0].token_ids
        assert len(found[name]) == 40
    return found


@pytest.fixture(scope="module")
def subject() -> list[int]:
    return random_ids(random.Random(77), 45)


@pytest.fixture(scope="module")
def alone(llama: Model, subject: list[int]) -> dict[str, list[int]]:
    """Outputs of a new engine: prompts in one chunk, nothing cached."""
    with rig_of(llama.folder, num_pages=750, max_num_batched_tokens=512, enable_prefix_caching=False) as rig:
        return outputs(rig, subject)


def test_an_answer_is_the_same_alone_and_among_32_others(
    llama: Model, subject: list[int], alone: dict[str, list[int]]
) -> None:
    with rig_of(llama.folder, num_pages=750, max_num_batched_tokens=64) as rig:
        assert outputs(rig, subject, company=32) == alone
        assert total_preemptions(rig) == (0, 0)


@pytest.mark.parametrize("swap", [0.0, 0.01])
def test_an_answer_is_the_same_when_seqs_are_preempted(
    llama: Model, subject: list[int], alone: dict[str, list[int]], swap: float
) -> None:
    with rig_of(llama.folder, num_pages=20, max_num_batched_tokens=64, swap_space=swap) as rig:
        assert outputs(rig, subject, company=32, seed=1) == alone
        recomputed, swapped = total_preemptions(rig)
    assert swapped > 20 if swap else recomputed > 20


@pytest.mark.parametrize("budget", [1, 7, 16, 45])
def test_an_answer_is_the_same_however_its_prompt_is_cut(
    llama: Model, subject: list[int], alone: dict[str, list[int]], budget: int
) -> None:
    with rig_of(llama.folder, num_pages=750, max_num_batched_tokens=budget, enable_prefix_caching=False) as rig:
        assert outputs(rig, subject) == alone


def test_an_answer_is_the_same_when_its_prompt_is_cached(
    llama: Model, subject: list[int], alone: dict[str, list[int]]
) -> None:
    with rig_of(llama.folder, num_pages=750) as rig:
        first = outputs(rig, subject)
        before = rig.engine.stats().num_cached_tokens_total
        assert outputs(rig, subject) == first == alone
        assert rig.engine.stats().num_cached_tokens_total - before >= 32 * len(SUBJECTS)


def test_without_chunked_prefill_answers_are_the_same(
    llama: Model, subject: list[int], alone: dict[str, list[int]]
) -> None:
    with rig_of(llama.folder, num_pages=750, max_num_batched_tokens=64, enable_chunked_prefill=False) as rig:
        assert outputs(rig, subject, company=8, seed=2) == alone


def test_each_of_n_is_what_its_seed_gives_whatever_happens_to_it(llama: Model, subject: list[int]) -> None:
    params = SamplingParams(n=5, seed=9, max_tokens=20, ignore_eos=True)
    found = []
    for num_pages, company in ((750, 0), (750, 12), (14, 12)):
        with rig_of(llama.folder, num_pages=num_pages) as rig:
            for other, kind in crowd(company, seed=3):
                rig.add(other, kind)
            request_id = rig.add(subject, params)
            answers = rig.drain()
            found.append([answers[request_id, i].token_ids for i in range(5)])
    assert found[0] == found[1] == found[2]
    assert len({tuple(tokens) for tokens in found[0]}) == 5


def bits(rig: Rig, prompt: list[int], company: int) -> list[tuple[float, ...]]:
    """Log-probabilities of a greedy answer, exactly."""
    params = greedy(12, ignore_eos=True, logprobs=3)
    for other, kind in crowd(company, seed=4)[: company // 2]:
        rig.add(other, kind)
    request_id = rig.add(prompt, params)
    for other, kind in crowd(company, seed=4)[company // 2 :]:
        rig.add(other, kind)
    answer = rig.drain()[request_id, 0]
    return [(entry.token_id, entry.logprob, *(value for _, value in entry.top)) for entry in answer.logprobs]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_invariant_engines_give_the_same_bits_in_any_company(
    llama: Model, subject: list[int], dtype: str
) -> None:
    prompt = subject[:21]
    found = []
    runs: list[tuple[dict[str, Any], int]] = [
        ({"max_num_batched_tokens": 512}, 0),
        ({"max_num_batched_tokens": 13}, 8),
        ({"num_pages": 10, "max_num_batched_tokens": 24}, 8),
        ({"num_pages": 10, "max_num_batched_tokens": 24, "swap_space": 0.01}, 8),
    ]
    for settings, company in runs:
        with rig_of(llama.folder, dtype=dtype, batch_invariant=True, **{"num_pages": 750, **settings}) as rig:
            found.append(bits(rig, prompt, company))
            if company:
                found.append(bits(rig, prompt, company=0))  # from the prefix cache
    assert all(each == found[0] for each in found)


def test_without_the_switch_neighbours_move_logprobs_by_rounding_only(
    llama: Model, subject: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Matrix products may sum in another order when the batch has another size."""
    found = []
    for budget, company in ((512, 0), (64, 16)):
        with rig_of(llama.folder, num_pages=750, max_num_batched_tokens=budget) as rig:
            found.append(np.array([row[1] for row in bits(rig, subject, company)]))
    worst = np.abs(found[0] - found[1]).max()
    with capsys.disabled():
        print(f" [float32 logprobs alone and in company differ by up to {worst:.1e}]", end="")
    assert worst < 2e-5

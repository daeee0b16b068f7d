"""Output is the same with and without drafts, right or wrong, whatever the requests ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_rig import Answer, Rig, greedy, make_rig, related_prompts
from speculation_rig import Outputs, ReplayDrafter, with_drafter

from quire.hooks import registry
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.params.structured import StructuredSpec
from quire_testing.tiny import tiny_llama

PROMPTS = related_prompts(10, seed=4)
REPEATING = [list(b"abcabcabcabc"), list(b"to be or not to be or not"), [7] * 9, list(b"xyxyxyx")]

SEEDED: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 1},
    {"temperature": 1.5, "seed": 2, "top_k": 30},
    {"temperature": 0.7, "seed": 3, "top_p": 0.8, "min_p": 0.01},
    {"temperature": 1.0, "seed": 4, "presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"temperature": 0, "repetition_penalty": 1.3},
    {"temperature": 0, "logit_bias": {65: 4.0}, "logprobs": 2},
    {"temperature": 0.8, "seed": 5, "logprobs": 3},
    {"temperature": 0, "min_tokens": 6, "prompt_logprobs": 1},
    {"temperature": 0.8, "seed": 6, "structured": StructuredSpec(kind="regex", source="[a-e]{3,20}")},
    {"temperature": 0, "structured": StructuredSpec(kind="choice", source='["a sure thing", "a sure bet"]')},
    {"temperature": 0, "bad_word_ids": ((65,), (66, 67))},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Rig]:
    rig = make_rig(folder)
    yield rig
    rig.engine.close()


def requests() -> list[tuple[list[int], SamplingParams | BeamSearchParams]]:
    found: list[tuple[list[int], SamplingParams | BeamSearchParams]] = [
        (prompt, greedy(20)) for prompt in (*PROMPTS, *REPEATING)
    ]
    for i, params in enumerate(SEEDED):
        found += [(PROMPTS[(i + j) % len(PROMPTS)], SamplingParams(max_tokens=18, **params)) for j in range(2)]
    found.append((PROMPTS[0], SamplingParams(n=3, temperature=1.1, seed=9, max_tokens=15)))
    found.append((PROMPTS[1], BeamSearchParams(beam_width=3, max_tokens=8)))
    found.append((PROMPTS[2], greedy(0)))
    return found


def answered(rig: Rig) -> list[dict[int, Answer]]:
    ids = [rig.add(prompt, params) for prompt, params in requests()]
    answers = rig.drain()
    return [{index: answer for (owner, index), answer in answers.items() if owner == each} for each in ids]


def shown(answers: list[dict[int, Answer]]) -> list[list[tuple[Any, ...]]]:
    return [[_shown(every[index]) for index in sorted(every)] for every in answers]


def _shown(answer: Answer) -> tuple[Any, ...]:
    logprobs = [(each.token_id, round(each.logprob, 3)) for each in answer.logprobs]
    return answer.token_ids, logprobs, answer.last.finish_reason, answer.last.stop_reason


@pytest.fixture(scope="module")
def expected(plain: Rig) -> list[dict[int, Answer]]:
    return answered(plain)


def outputs_of(expected: list[dict[int, Answer]]) -> Outputs:
    found: Outputs = {}
    for (prompt, _), every in zip(requests(), expected, strict=True):
        found.setdefault(tuple(prompt), []).extend(answer.token_ids for answer in every.values())
    return found


SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 5, "max_num_seqs": 4},
    {"num_pages": 34, "preemption": "recompute", "max_num_seqs": 12},
    {"num_pages": 34, "preemption": "swap", "swap_space": 0.01, "max_num_seqs": 12},
    {"max_num_batched_tokens": 512},
    {"batch_invariant": True},
    {"enable_prefix_caching": False, "max_num_batched_tokens": 64},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("spoiled", [0.0, 0.3, 1.0])
def test_right_and_wrong_drafts_change_no_answer(
    folder: Path, expected: list[dict[int, Answer]], settings: dict[str, Any], spoiled: float
) -> None:
    drafter = ReplayDrafter(outputs_of(expected), spoiled)
    config = {"speculative_config": {"method": "replay", "num_speculative_tokens": 4, "adaptive": False}}
    rig = make_rig(folder, with_drafter(registry.load(None), drafter), **config, **settings)
    try:
        assert shown(answered(rig)) == shown(expected)
        assert drafter.num_drafted > 100
        rig.engine.step()
        assert not drafter.live
        assert rig.engine.stats().num_pages_used == 0
    finally:
        rig.engine.close()


def test_right_drafts_save_steps(folder: Path, plain: Rig) -> None:
    output = plain.tokens([PROMPTS[0]], greedy(40, ignore_eos=True))[0]
    drafter = ReplayDrafter({tuple(PROMPTS[0]): [output]}, 0.0)
    config = {"speculative_config": {"method": "replay", "num_speculative_tokens": 4, "adaptive": False}}
    rig = make_rig(folder, with_drafter(registry.load(None), drafter), max_num_batched_tokens=64, **config)
    try:
        assert rig.tokens([PROMPTS[0]], greedy(40, ignore_eos=True))[0] == output
        assert rig.engine.stats().num_steps_total == 1 + 8  # the prompt's step gives 1 token, the others 5 (the last 4)
    finally:
        rig.engine.close()


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_found_drafts_change_no_answer(
    folder: Path, expected: list[dict[int, Answer]], method: str, count: int
) -> None:
    rig = make_rig(folder, speculative_config={"method": method, "num_speculative_tokens": count})
    try:
        assert shown(answered(rig)) == shown(expected)
        assert shown(answered(rig)) == shown(expected)  # now the outputs are known
    finally:
        rig.engine.close()

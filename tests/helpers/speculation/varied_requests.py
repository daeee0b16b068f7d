"""Requests that ask for much of what an engine can do, and settings of engines, under which drafts change no answer."""

from __future__ import annotations

from typing import Any

from engine_rig import Answer, Rig, greedy, related_prompts

from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.params.structured import StructuredSpec

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

SETTINGS: list[dict[str, Any]] = [
    {},
    {"max_num_batched_tokens": 5, "max_num_seqs": 4},
    {"num_pages": 10, "preemption": "recompute", "max_num_seqs": 12},
    {"num_pages": 10, "preemption": "swap", "swap_space": 0.01, "max_num_seqs": 12},
    {"max_num_batched_tokens": 512},
    {"batch_invariant": True},
    {"enable_prefix_caching": False, "max_num_batched_tokens": 64},
]


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

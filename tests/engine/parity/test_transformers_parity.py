"""The engine ends texts, scores tokens and searches beams as transformers does. Greedy tokens: tests/families/."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_rig import Rig, greedy, related_prompts, rig_of
from parity_model import NEW_TOKENS, Model

from quire.params.sampling import BeamSearchParams, SamplingParams


def test_output_ends_where_transformers_ends(llama: Model, roomy: Rig) -> None:
    prompts = related_prompts(6, seed=3)
    free = [llama.generate(tuple(prompt))[0] for prompt in prompts]
    eos = free[0][20]
    params = greedy(NEW_TOKENS, ignore_eos=True, stop_token_ids=[eos])
    assert roomy.tokens(prompts, params) == [llama.generate(tuple(p), eos_token_id=eos)[0] for p in prompts]


def test_logprobs_are_those_of_the_model(llama: Model, roomy: Rig) -> None:
    prompts = related_prompts(4, seed=5)
    ids = [roomy.add(prompt, SamplingParams(logprobs=5, max_tokens=12, seed=1, top_p=0.9)) for prompt in prompts]
    answers = roomy.drain()
    for prompt, request_id in zip(prompts, ids, strict=True):
        answer = answers[request_id, 0]
        rows = llama.logprobs([*prompt, *answer.token_ids])[len(prompt) - 1 : -1]
        assert len(answer.logprobs) == 12
        for token, entry, row in zip(answer.token_ids, answer.logprobs, rows, strict=True):
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(row[token].item(), abs=1e-4)
            assert entry.rank == int((row > row[token]).sum()) + 1
            assert [i for i, _ in entry.top] == row.topk(5).indices.tolist()
            np.testing.assert_allclose([value for _, value in entry.top], row.topk(5).values, atol=1e-4)
        assert answer.last.cumulative_logprob == pytest.approx(sum(e.logprob for e in answer.logprobs))


@pytest.mark.parametrize("num_pages", [750, 10])
def test_prompt_logprobs_are_those_of_the_model(llama: Model, num_pages: int) -> None:
    prompts = related_prompts(8, seed=6)
    with rig_of(llama.folder, num_pages=num_pages) as rig:
        rig.tokens(prompts[:2], greedy(4))  # their beginnings are cached now, and must be scored all the same
        ids = [rig.add(prompt, greedy(20, prompt_logprobs=2)) for prompt in prompts]
        answers = rig.drain()
    for prompt, request_id in zip(prompts, ids, strict=True):
        entries = answers[request_id, 0].deltas[0].prompt_logprobs
        assert entries is not None
        assert entries[0] is None
        rows = llama.logprobs(prompt)[:-1]
        for token, entry, row in zip(prompt[1:], entries[1:], rows, strict=True):
            assert entry is not None
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(row[token].item(), abs=1e-4)
            assert entry.rank == int((row > row[token]).sum()) + 1
            assert [i for i, _ in entry.top] == row.topk(2).indices.tolist()


def test_a_prompt_alone_can_be_scored(llama: Model, roomy: Rig) -> None:
    (prompt,) = related_prompts(1, seed=8)
    request_id = roomy.add(prompt, SamplingParams(max_tokens=0, prompt_logprobs=0))
    (answer,) = roomy.drain().values()
    assert answer.deltas[0].request_id == request_id
    assert answer.token_ids == []
    assert len(answer.deltas[0].prompt_logprobs or ()) == len(prompt)


@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0])
@pytest.mark.parametrize("width", [2, 4])
def test_beam_search_finds_what_transformers_finds(llama: Model, roomy: Rig, width: int, penalty: float) -> None:
    for prompt in related_prompts(3, seed=9):
        params = BeamSearchParams(beam_width=width, max_tokens=12, length_penalty=penalty, ignore_eos=True)
        request_id = roomy.add(prompt, params)
        answers = roomy.drain()
        settings = {"num_beams": width, "num_return_sequences": width, "length_penalty": penalty, "max_new_tokens": 12}
        expected = llama.generate(tuple(prompt), **settings)
        assert [answers[request_id, i].token_ids for i in range(width)] == expected


def with_eos(model: Model, eos: int, folder: Path) -> Path:
    """The same model with another end-of-text token."""
    shutil.copytree(model.folder, folder, dirs_exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": eos}))
    return folder


@pytest.mark.parametrize("penalty", [1.0, 0.0, 2.0, -1.0])
@pytest.mark.parametrize("num_pages", [15, 750])
def test_beam_search_that_may_end_finds_what_transformers_finds(
    llama: Model, tmp_path: Path, num_pages: int, penalty: float
) -> None:
    prompts = related_prompts(4, seed=9)
    eos = llama.generate(tuple(prompts[0]), num_beams=3, max_new_tokens=8)[0][3]
    settings: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12, "eos_token_id": eos, "early_stopping": "never"}
    settings |= {"num_return_sequences": 3, "length_penalty": penalty}
    with rig_of(with_eos(llama, eos, tmp_path), num_pages=num_pages) as rig:
        params = BeamSearchParams(beam_width=3, max_tokens=12, length_penalty=penalty)
        ids = [rig.add(prompt, params) for prompt in prompts]
        answers = rig.drain()
    for prompt, request_id in zip(prompts, ids, strict=True):
        expected = [cut(tokens, eos) for tokens in llama.generate(tuple(prompt), **settings)]
        found = [answers[request_id, i].token_ids for i in range(3)]
        if penalty > 0:
            assert found == expected
        # transformers ignores ends outside the best `width` continuations, vLLM and we do not
        scores, theirs = ([score(llama, prompt, each, penalty) for each in texts] for texts in (found, expected))
        assert scores == sorted(scores, reverse=True)
        assert all(ours >= other - 1e-4 for ours, other in zip(scores, theirs, strict=True))


def score(model: Model, prompt: list[int], output: list[int], penalty: float) -> float:
    rows = model.logprobs([*prompt, *output])[len(prompt) - 1 : -1]
    return float(rows[torch.arange(len(output)), torch.tensor(output)].sum()) / len(output) ** penalty


def cut(tokens: list[int], eos: int) -> list[int]:
    return tokens[: tokens.index(eos) + 1] if eos in tokens else tokens

"""The engine against transformers, and against itself in other company: what a request gets, token for token."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from engine_rig import Rig, greedy, random_ids, related_prompts, rig_of

from quire import registry
from quire.sampling import BeamSearchParams, SamplingParams
from quire.testing.tiny import byte_tokenizer, reference_model, save

ARCHITECTURES = tuple(
    name
    for name in registry.load(None).of("quire_architectures")
    if name.endswith(("ForCausalLM", "LMHeadModel")) and hasattr(transformers, name)
)
"""The language models; those that see or pool have tests of their own."""
NEW_TOKENS = 64
SPECIAL: dict[str, dict[str, Any]] = {
    "Gemma2ForCausalLM": {"sliding_window": 9, "query_pre_attn_scalar": 24},
    "Gemma3ForCausalLM": {"sliding_window": 9, "query_pre_attn_scalar": 24, "sliding_window_pattern": 2},
    "MistralForCausalLM": {"sliding_window": 13},
    "MixtralForCausalLM": {"num_local_experts": 4},
    "Qwen3MoeForCausalLM": {"num_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2},
    "GraniteForCausalLM": {"residual_multiplier": 0.7, "embedding_multiplier": 1.5},
    "OPTForCausalLM": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "GPT2LMHeadModel": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
}
"""What is special about an architecture, at a size that shows it."""

LENGTH = 160
"""Slots of a page pool that holds one request and a half of those below."""


class Model:
    """A tiny random model on disk and in transformers."""

    def __init__(self, architecture: str, folder: Path) -> None:
        self.folder = folder
        self.reference = reference_model(architecture, **SPECIAL.get(architecture, {}))
        if self.reference.config.tie_word_embeddings:
            with torch.no_grad():  # else a tied model says the last token for ever
                self.reference.get_input_embeddings().weight.mul_(0.1)
        save(self.reference, folder)
        byte_tokenizer(folder)
        self.generate = cache(self._generate)

    def _generate(self, prompt: tuple[int, ...], **settings: Any) -> list[list[int]]:
        """What transformers makes of one prompt: each of the sequences it returns, without the prompt."""
        ids = torch.tensor([prompt])
        settings = {
            "do_sample": False,
            "max_new_tokens": NEW_TOKENS,
            "eos_token_id": None,
            "pad_token_id": 0,
            **settings,
        }
        found = self.reference.generate(ids, attention_mask=torch.ones_like(ids), **settings)
        return found[:, len(prompt) :].tolist()

    @torch.inference_mode()
    def logprobs(self, tokens: list[int]) -> torch.Tensor:
        """Row i: log-probabilities of the token at i + 1."""
        return torch.log_softmax(self.reference(torch.tensor([tokens])).logits[0].double(), -1)


@cache
def model_of(architecture: str, folder: str) -> Model:
    return Model(architecture, Path(folder) / architecture)


@pytest.fixture(scope="module")
def models() -> Iterator[Any]:
    with TemporaryDirectory() as folder:
        yield lambda architecture: model_of(architecture, folder)


@pytest.fixture(scope="module")
def llama(models: Any) -> Model:
    found: Model = models("LlamaForCausalLM")
    return found


@pytest.fixture(scope="module")
def roomy(llama: Model) -> Iterator[Rig]:
    """An engine in which nothing is preempted."""
    with rig_of(llama.folder, num_pages=3000) as rig:
        yield rig


def total_preemptions(rig: Rig) -> tuple[int, int]:
    stats = rig.engine.stats()
    return stats.num_preemptions_recompute_total, stats.num_preemptions_swap_total


# --- against transformers ------------------------------------------------------------------------------


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sixty_four_greedy_tokens_are_those_of_transformers(models: Any, architecture: str, preemption: str) -> None:
    model, prompts = models(architecture), related_prompts()
    swap = 0.01 if preemption == "swap" else 0.0
    with rig_of(model.folder, num_pages=LENGTH // 4, preemption=preemption, swap_space=swap) as rig:
        found = rig.tokens(prompts, greedy(NEW_TOKENS, ignore_eos=True))
        stats = rig.engine.stats()
        recomputed, swapped = total_preemptions(rig)
    expected = [model.generate(tuple(prompt))[0] for prompt in prompts]
    assert found == expected
    assert swapped > 0 if preemption == "swap" else recomputed > 0
    assert stats.num_cached_tokens_total > 0
    assert any(len(prompt) > 13 for prompt in prompts), "some prompts are computed in several chunks"
    assert len({token for tokens in expected for token in tokens}) > 20, "the model is lively enough to be wrong"


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


@pytest.mark.parametrize("num_pages", [3000, 40])
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
@pytest.mark.parametrize("num_pages", [60, 3000])
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
    """The outputs of an engine that has served nobody else, prompts in one piece, nothing cached."""
    with rig_of(llama.folder, num_pages=3000, max_num_batched_tokens=512, enable_prefix_caching=False) as rig:
        return outputs(rig, subject)


def test_an_answer_is_the_same_alone_and_among_32_others(
    llama: Model, subject: list[int], alone: dict[str, list[int]]
) -> None:
    with rig_of(llama.folder, num_pages=3000, max_num_batched_tokens=64) as rig:
        assert outputs(rig, subject, company=32) == alone
        assert total_preemptions(rig) == (0, 0)


@pytest.mark.parametrize("swap", [0.0, 0.01])
def test_an_answer_is_the_same_when_seqs_are_preempted(
    llama: Model, subject: list[int], alone: dict[str, list[int]], swap: float
) -> None:
    with rig_of(llama.folder, num_pages=70, max_num_batched_tokens=64, swap_space=swap) as rig:
        assert outputs(rig, subject, company=32, seed=1) == alone
        recomputed, swapped = total_preemptions(rig)
    assert swapped > 20 if swap else recomputed > 20


@pytest.mark.parametrize("budget", [1, 7, 16, 45])
def test_an_answer_is_the_same_however_its_prompt_is_cut(
    llama: Model, subject: list[int], alone: dict[str, list[int]], budget: int
) -> None:
    with rig_of(llama.folder, num_pages=3000, max_num_batched_tokens=budget, enable_prefix_caching=False) as rig:
        assert outputs(rig, subject) == alone


def test_an_answer_is_the_same_when_its_prompt_is_cached(
    llama: Model, subject: list[int], alone: dict[str, list[int]]
) -> None:
    with rig_of(llama.folder, num_pages=3000) as rig:
        first = outputs(rig, subject)
        before = rig.engine.stats().num_cached_tokens_total
        assert outputs(rig, subject) == first == alone
        assert rig.engine.stats().num_cached_tokens_total - before >= 40 * len(SUBJECTS)


def test_without_chunked_prefill_answers_are_the_same(
    llama: Model, subject: list[int], alone: dict[str, list[int]]
) -> None:
    with rig_of(llama.folder, num_pages=3000, max_num_batched_tokens=64, enable_chunked_prefill=False) as rig:
        assert outputs(rig, subject, company=8, seed=2) == alone


def test_each_of_n_is_what_its_seed_gives_whatever_happens_to_it(llama: Model, subject: list[int]) -> None:
    params = SamplingParams(n=5, seed=9, max_tokens=20, ignore_eos=True)
    found = []
    for num_pages, company in ((3000, 0), (3000, 12), (45, 12)):
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
        ({"num_pages": 40, "max_num_batched_tokens": 24}, 8),
        ({"num_pages": 40, "max_num_batched_tokens": 24, "swap_space": 0.01}, 8),
    ]
    for settings, company in runs:
        with rig_of(llama.folder, dtype=dtype, batch_invariant=True, **{"num_pages": 3000, **settings}) as rig:
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
        with rig_of(llama.folder, num_pages=3000, max_num_batched_tokens=budget) as rig:
            found.append(np.array([row[1] for row in bits(rig, subject, company)]))
    worst = np.abs(found[0] - found[1]).max()
    with capsys.disabled():
        print(f" [float32 logprobs alone and in company differ by up to {worst:.1e}]", end="")
    assert worst < 2e-5

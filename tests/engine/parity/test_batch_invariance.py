"""With `--batch-invariant`, what surrounds a request changes no bit of its answer: 1,000 random neighbourhoods."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_rig import Answer, Rig, random_ids, rig_of
from hybrid_cases import BOTH, DELTA, EXPERTS, OFTEN
from safetensors.torch import save_file
from thread_ranks import launch_thread

from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.types import AdapterRef, WeightedAdapter
from quire_kernels.cpu.isa import available
from quire_testing.tiny import SIZES, tiny_model

pytestmark = pytest.mark.skipif(not available(), reason="without the C++ ops every token is computed alone")

SUBJECTS = 10
WIDE = {"hidden_size": 192, "num_attention_heads": 12, "num_key_value_heads": 1}
MAMBA = {"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8}


@dataclass(frozen=True)
class Case:
    """A model and settings. rounds: how often all subjects are answered, each of them in a neighbourhood of its own.

    together: whether its steps are one forward; the others compute each token alone. length: of prompts, in multiples.
    """

    rounds: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    architecture: str = "LlamaForCausalLM"
    config: Mapping[str, Any] = field(default_factory=dict)
    together: bool = True
    length: int = 1


CASES = {
    "float32": Case(20, {"dtype": "float32"}),
    "bfloat16": Case(18),
    "long": Case(2, {"num_pages": 3000}, config={"max_position_embeddings": 4096}, length=25),
    "few pages": Case(6, {"num_pages": 22, "swap_space": 0.001}),
    "drafts": Case(6, {"speculative_config": {"method": "ngram", "prompt_lookup_min": 1}}),
    "adapters": Case(8),
    "two ranks": Case(4, {"tensor_parallel_size": 2}),
    "12 heads on one": Case(4, {}, "Qwen2ForCausalLM", WIDE),
    "int8": Case(6, {"quantization": "int8", "kv_cache_dtype": "int8"}),
    "int4": Case(4, {"quantization": "int4"}),
    "int4 pages": Case(6, {"kv_cache_dtype": "int4"}, config={"head_dim": 32}),
    "experts": Case(7, {}, "Qwen3MoeForCausalLM", EXPERTS),
    "windows, capped logits": Case(3, {}, "Gemma2ForCausalLM", {"sliding_window": 20}),
    "delta rule": Case(3, OFTEN, "Qwen3NextForCausalLM", {**DELTA, **BOTH, "num_experts": 0}),
    "Mamba-2": Case(3, {**OFTEN, "max_model_len": 400}, "Mamba2ForCausalLM", MAMBA),
    "torch attention": Case(1, {"page_size": 8}, together=False),
}


@dataclass(frozen=True)
class Subject:
    prompt: list[int]
    params: SamplingParams
    adapters: tuple[WeightedAdapter, ...] = ()

    def ask(self, rig: Rig) -> str:
        return rig.add(self.prompt, self.params, adapters=self.adapters)


def subjects(with_adapters: bool, length: int) -> list[Subject]:
    """Prompts of 1 to 90 tokens times `length`, many of which begin alike."""
    rng = random.Random(3)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 4, "top_p": 0.9},
        {"temperature": 0, "prompt_logprobs": 1},
    ]
    a, b = (WeightedAdapter(AdapterRef(name=name), weight) for name, weight in (("a", 1.0), ("b", -0.5)))
    uses = [(), (a,), (a, b), (b,)] if with_adapters else [()]
    shared = random_ids(rng, 50 * length)
    return [
        Subject(
            shared[: length * rng.choice([0, 33, 50])] + random_ids(rng, rng.randrange(1, 40 * length)),
            SamplingParams(max_tokens=6, ignore_eos=True, logprobs=3, **kinds[i % len(kinds)]),
            uses[i % len(uses)],
        )
        for i in range(SUBJECTS)
    ]


def numbers(answer: Answer) -> list[Any]:
    """All tokens and log-probabilities of an answer, and of its prompt."""
    prompt = [entry for delta in answer.deltas for entry in delta.prompt_logprobs or () if entry is not None]
    return [(entry.token_id, entry.logprob, tuple(entry.top)) for entry in (*prompt, *answer.logprobs)]


def add_other(rig: Rig, rng: random.Random, asked: Sequence[Subject]) -> None:
    """Another request, which may begin like one of the subjects."""
    like = rng.choice(asked)
    begin = like.prompt[: rng.choice([0, 16, len(like.prompt)])]
    kinds: list[dict[str, Any]] = [{"temperature": 0}, {"seed": 1, "n": 2}, {"logprobs": 1, "repetition_penalty": 1.2}]
    params = SamplingParams(max_tokens=rng.randrange(1, 12), ignore_eos=True, **rng.choice(kinds))
    Subject(begin + random_ids(rng, rng.randrange(1, 60)), params, like.adapters).ask(rig)


def answers_among_others(rig: Rig, rng: random.Random, asked: Sequence[Subject]) -> list[list[Any]]:
    """The subjects arrive in random order among others, in steps of random size, with some of their pages cached."""
    if rng.random() < 0.3:
        rig.engine.reset_prefix_cache()
    waiting, ids, found = rng.sample(range(len(asked)), len(asked)), dict[int, str](), dict[str, Answer]()
    budget = rng.choice([1, 16, 40, 300]) * max(len(subject.prompt) for subject in asked) // 90 + 1
    while waiting or rig.engine.has_work:
        for _ in range(rng.randrange(3) if waiting else 0):
            add_other(rig, rng, asked)
        for _ in range(min(len(waiting), rng.choice([0, 1, 4]))):
            number = waiting.pop()
            ids[number] = asked[number].ask(rig)
        for delta in rig.engine.step(budget + rng.randrange(budget)) if rig.engine.has_work else ():
            answer = found.setdefault(delta.request_id, Answer())
            answer.logprobs += delta.logprobs or ()
            answer.deltas.append(delta)
    return [numbers(found[ids[i]]) for i in range(len(asked))]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Path]:
    made: dict[str, Path] = {}

    def of(case: Case) -> Path:
        key = json.dumps([case.architecture, case.config])
        if key not in made:
            made[key] = tiny_model(tmp_path_factory.mktemp("model"), case.architecture, **case.config)
        return made[key]

    return of


def write_adapter(folder: Path, seed: int) -> Path:
    """A LoRA adapter of some matrices of the tiny Llama."""
    generator, tensors = torch.Generator().manual_seed(seed), {}
    width, inner, rank = SIZES["hidden_size"], SIZES["intermediate_size"], 4 + seed
    shapes = {"self_attn.q_proj": (width, width), "mlp.down_proj": (width, inner)}
    for layer in range(SIZES["num_hidden_layers"]):
        for name, (outputs, inputs) in shapes.items():
            path = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{path}.lora_A.weight"] = torch.randn(rank, inputs, generator=generator) / 8
            tensors[f"{path}.lora_B.weight"] = torch.randn(outputs, rank, generator=generator) / 8
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj", "down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_there_are_a_thousand_neighbourhoods() -> None:
    assert sum(case.rounds for case in CASES.values()) * SUBJECTS >= 1000


@pytest.mark.parametrize("name", CASES)
def test_no_bit_of_an_answer_depends_on_its_neighbours(
    folder_of: Callable[[Case], Path], tmp_path: Path, name: str
) -> None:
    """Each subject alone in one engine, with nothing cached, and in the neighbourhoods of another engine."""
    case, rng, adapted = CASES[name], random.Random(name), name == "adapters"
    asked, plugins = subjects(adapted, case.length), registry.load(None, enable_lora=True) if adapted else None
    settings = {"dtype": "bfloat16", "num_pages": 400, "max_num_batched_tokens": 512, **case.settings}
    adapters = {each: write_adapter(tmp_path / each, i) for i, each in enumerate("ab") if adapted}

    def started(rig: Rig) -> Rig:
        for adapter, folder in adapters.items():
            rig.engine.load_adapter(adapter, folder)
        return rig

    with rig_of(folder_of(case), plugins, launch=launch_thread, batch_invariant=True, **settings) as rig:
        alone = []
        for subject in asked:
            rig.engine.reset_prefix_cache()
            request_id = subject.ask(started(rig) if not alone else rig)
            alone.append(numbers(rig.drain()[request_id, 0]))
        assert rig.engine.loaded.module.is_batch_invariant(None) == case.together
    assert all(alone)
    with rig_of(folder_of(case), plugins, launch=launch_thread, batch_invariant=True, **settings) as rig:
        started(rig)
        for number in range(case.rounds):
            assert answers_among_others(rig, rng, asked) == alone, f"round {number}"
        stats = rig.engine.stats()
    assert stats.num_cached_tokens_total > 0
    if name == "few pages":
        assert stats.num_preemptions_swap_total + stats.num_preemptions_recompute_total > 0

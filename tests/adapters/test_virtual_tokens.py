"""Prompt tuning, P-tuning and prefix tuning in an engine, with peft as the oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hybrid_cases
import latent_cases
import pytest
import torch
from engine_rig import Rig, greedy, rig_of
from parity_model import total_preemptions
from virtual_tokens_rig import FOUND, KINDS, World, answer, prompts_of, using

from quire.params.sampling import BeamSearchParams, SamplingParams

pytestmark = pytest.mark.filterwarnings("ignore:Position ids are not supported:UserWarning")  # peft says so

ALL: Sequence[str] = tuple(str(kind) for kind in KINDS)
HYBRID, LATENT = ({case.architecture: case.config for case in cases.CASES} for cases in (hybrid_cases, latent_cases))
GPT2 = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 512}
NEOX = {"rotary_pct": 0.25, "num_key_value_heads": 4}
TIGHT = {"num_pages": 6, "enable_prefix_caching": False, "max_num_batched_tokens": 33}
PROMPTS = [*prompts_of(2), [7]]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("llama"), "LlamaForCausalLM", ALL)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("gpt2"), "GPT2LMHeadModel", ALL, **GPT2)


def mixed(rig: Rig, world: World, count: int = 8) -> Mapping[tuple[str | None, int], list[int]]:
    """Tokens of every prompt with every adapter and none, all in one batch."""
    params = greedy(count, ignore_eos=True)
    ids = {
        (kind, i): rig.add(prompt, params, adapters=using(kind))
        for i, prompt in enumerate(PROMPTS)
        for kind in (None, *world.paths)
    }
    answers = rig.drain()
    for key, request_id in ids.items():
        assert answers[request_id, 0].last.finish_reason == "length", (key, answers[request_id, 0].last)
    return {key: answers[request_id, 0].token_ids for key, request_id in ids.items()}


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_tokens_are_those_of_peft_however_steps_are_cut(name: str, request: pytest.FixtureRequest) -> None:
    world: World = request.getfixturevalue(name)
    with rig_of(world.folder, FOUND, max_num_batched_tokens=7) as rig:
        world.load(rig)
        found = mixed(rig, world)
        again = mixed(rig, world)
        assert rig.engine.stats().num_cached_tokens_total > 0
    for (kind, i), tokens in found.items():
        world.check_greedy(kind, PROMPTS[i], tokens)
    assert again == found, "from the prefix cache"
    for kind in ("mlp", "projected"):
        assert world.generated(kind, PROMPTS[0], 8) == found[kind, 0], "by generate"
    assert len({tuple(found[kind, 0]) for kind in (None, *world.paths)}) > 4, "they make a difference"
    ways: list[dict[str, Any]] = [
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 33, "page_size": 3},
        {**TIGHT, "preemption": "recompute"},
        {**TIGHT, "preemption": "swap", "swap_space": 0.01},
    ]
    for settings in ways:
        with rig_of(world.folder, FOUND, **settings) as rig:
            world.load(rig)
            assert mixed(rig, world) == found, settings
            if "preemption" in settings:
                assert total_preemptions(rig)[settings["preemption"] == "swap"] > 0


@pytest.mark.parametrize(
    ("architecture", "config"),
    [
        ("Gemma2ForCausalLM", {"sliding_window": 8}),  # embeddings are scaled, virtual tokens are not
        ("GraniteForCausalLM", {"embedding_multiplier": 3.0}),  # both are
        ("GPTNeoXForCausalLM", NEOX),  # fused matrices, partial rotation
        ("BloomForCausalLM", {"n_head": 4, "n_layer": 2, "seq_length": 512}),  # ALiBi, a norm of embeddings
        ("OPTForCausalLM", {"ffn_dim": 96, "word_embed_proj_dim": 64}),
        ("HeliumForCausalLM", {}),  # interleaved rotation
        ("Qwen3NextForCausalLM", dict(HYBRID["Qwen3NextForCausalLM"])),
        ("FalconH1ForCausalLM", dict(HYBRID["FalconH1ForCausalLM"])),
        ("DeepseekV3ForCausalLM", dict(LATENT["DeepseekV3ForCausalLM"])),
        ("LlamaForCausalLM", {"settings": {"model_impl": "transformers"}}),
    ],
)
def test_tokens_are_those_of_peft_in_other_models(architecture: str, config: Any, tmp_path: Path) -> None:
    settings = {"max_model_len": 80, **config.pop("settings", {})}
    takes_keys = architecture not in {**HYBRID, **LATENT}
    world = World(tmp_path, architecture, ("prompt", "prefix") if takes_keys else ("prompt",), **config)
    with rig_of(world.folder, FOUND, **settings) as rig:
        world.load(rig)
        found = mixed(rig, world)
    for (kind, i), tokens in found.items():
        world.check_greedy(kind, PROMPTS[i], tokens)


def test_pages_are_shared_among_requests_of_one_adapter_only(llama: World) -> None:
    prompt = prompts_of(1, seed=4)[0][:13]
    with rig_of(llama.folder, FOUND, page_size=4) as rig:
        llama.load(rig)
        for kind in ("mlp", "projected", "prefix"):  # the last two have the same ids in their first page
            (first,), (second,) = answer(rig, kind, prompt), answer(rig, kind, prompt)
            assert first.deltas[0].num_cached_tokens == 0, kind
            count = int(KINDS[kind]().num_virtual_tokens)
            assert second.deltas[0].num_cached_tokens == (count + len(prompt) - 1) // 4 * 4 - count, kind
            assert first.token_ids == second.token_ids
            llama.check_greedy(kind, prompt, first.token_ids)
        (other,) = answer(rig, "projected", [9, 9, 9])
        assert other.deltas[0].num_cached_tokens == 0, "virtual tokens are not the client's"
        llama.check_greedy("projected", [9, 9, 9], other.token_ids)


@pytest.mark.parametrize("kind", ["prompt", "prefix"])
def test_logprobs_of_prompts_and_answers_are_those_of_peft(llama: World, kind: str) -> None:
    prompt = prompts_of(1, seed=2)[0]
    with rig_of(llama.folder, FOUND, max_num_batched_tokens=7) as rig:
        llama.load(rig)
        for _ in range(2):
            (found,) = answer(rig, kind, prompt, greedy(4, ignore_eos=True, logprobs=0, prompt_logprobs=0))
    ids = [*prompt, *found.token_ids]
    expected = llama.logits(kind, ids).log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]
    scored = found.deltas[0].prompt_logprobs
    assert scored is not None
    assert (len(scored), scored[0]) == (len(prompt), None)
    given = [entry.logprob for entry in (*scored[1:], *found.logprobs) if entry is not None]
    assert (torch.tensor(given) - expected).abs().max() < 1e-4


def test_several_answers_and_beams_share_virtual_tokens(llama: World) -> None:
    several = SamplingParams(n=3, temperature=1.0, seed=3, max_tokens=6, ignore_eos=True)
    found = []
    for settings in ({}, {"batch_invariant": True}, {"max_num_batched_tokens": 2}):
        with rig_of(llama.folder, FOUND, **settings) as rig:
            llama.load(rig)
            asked = [
                (kind, prompt, params)
                for kind in ("prompt", "prefix", "projected")
                for prompt in ([7], PROMPTS[1])
                for params in (several, BeamSearchParams(beam_width=2, max_tokens=5))
            ]
            found.append([[one.token_ids for one in answer(rig, *each)] for each in asked])
    assert found[0] == found[1] == found[2]
    assert [len(each) for each in found[0]] == [3, 2] * 6


@pytest.mark.parametrize("kind", ["prompt", "prefix"])
def test_penalties_count_what_the_client_sent(llama: World, kind: str) -> None:
    prompt = PROMPTS[0]
    likely = llama.logits(kind, prompt)[-1]
    at_zero = SamplingParams(
        temperature=0, max_tokens=1, repetition_penalty=1.5, logprobs=0, allowed_token_ids=(0, 255)
    )
    with rig_of(llama.folder, FOUND) as rig:
        llama.load(rig)
        (found,) = answer(rig, kind, prompt, at_zero)
    assert 0 not in prompt
    assert 255 not in prompt
    assert found.token_ids == [0 if likely[0] > likely[255] else 255]


def test_quantized_pages_hold_virtual_tokens_however_steps_are_cut(llama: World) -> None:
    found = []
    for settings in ({}, {"max_num_batched_tokens": 2}, {"page_size": 16}):
        with rig_of(llama.folder, FOUND, kv_cache_dtype="int8", **settings) as rig:
            llama.load(rig)
            found.append([answer(rig, kind, PROMPTS[0])[0].token_ids for kind in ("prefix", "projected")])
    assert found[0] == found[1] == found[2]


def test_an_adapter_is_replaced_and_unloaded_while_requests_use_it(llama: World) -> None:
    prompt = PROMPTS[1]
    params = greedy(8, ignore_eos=True)
    with rig_of(llama.folder, FOUND, max_loras=1) as rig:
        rig.engine.load_adapter("a", llama.paths["prefix"])
        first = rig.add(prompt, params, adapters=using("a"))
        rig.engine.step()
        rig.engine.load_adapter("a", llama.paths["mlp"])
        second = rig.add(prompt, params, adapters=using("a"))
        rig.engine.unload_adapter("a")
        answers = rig.drain()
    llama.check_greedy("prefix", prompt, answers[first, 0].token_ids)
    llama.check_greedy("mlp", prompt, answers[second, 0].token_ids)

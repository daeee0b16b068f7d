"""Quantized weights, keys and values in models and engines: which ops are chosen, answers, settings."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cpu_isas import HERE
from engine_rig import greedy, random_ids, related_prompts, rig_of

from quire import cli
from quire.engine.loading.load import load_model
from quire.errors import ConfigError
from quire.hooks import registry
from quire.records import OpQuery, Quantization, Registry
from quire.settings.model_config import ModelConfig
from quire_kernels import reference, select
from quire_kernels.cpu import isa
from quire_kernels.cpu.compiled.blocks import CompiledBlocks
from quire_kernels.cpu.compiled.program import Program
from quire_models.step.kv_cache import KVCache
from quire_testing.tiny import tiny_llama

pytestmark = pytest.mark.usefixtures("seeded")


# --- selection -------------------------------------------------------------------------------------------

PAGED = ("paged_attention", *select.STORES)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantized_pages_are_left_to_implementations_that_know_them(kind: str) -> None:
    chosen = {c.op: c for c in select.choose(OpQuery("cpu", "float16", kv_dtype=kind)).report}
    assert {chosen[op].name for op in PAGED} == {f"torch-{kind}"}
    why = {r.name: r.reason for r in chosen["paged_attention"].rejected}
    assert why["torch"] == f"it stores keys and values as auto, not {kind}"
    plain = {c.op: c for c in select.choose(OpQuery("cpu", "float16")).report}
    assert {plain[op].name for op in PAGED} == {"torch"}


@pytest.mark.skipif(not HERE, reason="there is no compiler, or no instruction set for the C++ ops")
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cpp_ops_know_quantized_pages(dtype: str, kind: str) -> None:
    chosen = {c.op: c.name for c in select.choose(OpQuery("cpu", dtype, head_dims=(64,), kv_dtype=kind)).report}
    assert {chosen[op] for op in (*PAGED, "linear_int8", "fused_blocks")} == {f"cpp-{isa.available()[0].name}"}


# --- models and engines ----------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "weights": {"quantization": "int8"},
    "kv": {"kv_cache_dtype": "int8"},
    "both": {"quantization": "int8", "kv_cache_dtype": "int8"},
    "kv of 4 bits": {"kv_cache_dtype": "int4"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("quantized") / "tiny", seed=3, head_dim=32)


@pytest.fixture(scope="module")
def plugins() -> Registry:
    return registry.load(None)


@pytest.mark.skipif(not HERE, reason="there is no compiler, or no instruction set for the C++ ops")
@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_blocks_give_what_the_blocks_give(folder: Path, plugins: Registry, ways: str, dtype: str) -> None:
    from quire_models.testing import ChunkSpec, ModelDriver

    logits = []
    for recorded in (True, False):
        loaded = load_model(ModelConfig(model=str(folder), device="cpu", dtype=dtype, **WAYS[ways]), plugins)
        if not recorded:
            loaded.module.ops = replace(loaded.ops, fused_blocks=reference.fused_blocks)
        driver = ModelDriver(loaded.module, loaded.decoder, [range(10, 60), range(100, 133)])
        pages = driver.kv.num_pages
        driver.kv = KVCache.allocate(loaded.decoder.kv_shapes, pages, 16, loaded.kv_dtype, "cpu")
        steps = [[ChunkSpec(0, 20)], [ChunkSpec(0, 1), ChunkSpec(1, 33)], [ChunkSpec(0, 29)]]
        with torch.inference_mode():
            logits.append([part for step in steps for part in driver.step(step)])
        run = loaded.module._run
        whole = isinstance(run, CompiledBlocks) and [isinstance(stage, Program) for stage in run.stages] == [True]
        assert whole == recorded
    for ours, theirs in zip(*logits, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("ways", WAYS)
@pytest.mark.parametrize("page_size", [4, 16])
def test_an_engine_answers_alone_as_in_company_in_every_way(
    folder: Path, plugins: Registry, ways: str, page_size: int
) -> None:
    prompts = related_prompts(6)
    plain = {"page_size": page_size, **WAYS[ways]}
    with rig_of(folder, plugins, max_num_batched_tokens=64, enable_prefix_caching=False, **plain) as rig:
        alone = [rig.tokens([prompt], greedy(12, ignore_eos=True))[0] for prompt in prompts]
        assert rig.tokens(prompts, greedy(12, ignore_eos=True)) == alone
    tight = {"num_pages": 160 // page_size, "max_model_len": 80, "max_num_batched_tokens": 13}
    for preemption in ({"preemption": "recompute"}, {"preemption": "swap", "swap_space": 0.01}):
        with rig_of(folder, plugins, **tight, **preemption, **plain) as rig:
            assert rig.tokens(prompts * 2, greedy(12, ignore_eos=True)) == alone * 2
            stats = rig.engine.stats()
            assert stats.num_preemptions_recompute_total + stats.num_preemptions_swap_total > 0
            assert rig.tokens(prompts, greedy(12, ignore_eos=True)) == alone, "with pages of the first time"


@pytest.mark.parametrize("ways", WAYS)
def test_all_kinds_of_requests_run(folder: Path, plugins: Registry, ways: str) -> None:
    from quire.params.sampling import BeamSearchParams, SamplingParams

    kinds = [
        {"temperature": 1.0, "seed": 5, "top_k": 40, "top_p": 0.95},
        {"n": 2, "temperature": 0.9, "seed": 6},
        {"temperature": 0, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 0, "presence_penalty": 1.5, "allowed_token_ids": tuple(range(32, 127))},
    ]
    rng = random.Random(1)
    with rig_of(folder, plugins, **WAYS[ways]) as rig:
        for kind in kinds:
            rig.add(random_ids(rng, 20), SamplingParams(max_tokens=8, ignore_eos=True, **kind))
        rig.add(random_ids(rng, 20), BeamSearchParams(beam_width=3, max_tokens=8))
        answers = rig.drain()
    assert len(answers) == 4 + 1 + 3
    assert all(answer.last.finish_reason in ("stop", "length") for answer in answers.values())


@pytest.mark.parametrize("ways", WAYS)
def test_answers_stay_near_those_of_the_model_as_it_is(folder: Path, plugins: Registry, ways: str) -> None:
    prompt = related_prompts(1)[0]
    first = []
    for settings in ({}, WAYS[ways]):
        with rig_of(folder, plugins, **settings) as rig:
            request = rig.add(prompt, greedy(1, logprobs=5))
            first.append(dict(rig.drain()[request, 0].logprobs[0].top))
    same = first[0].keys() & first[1].keys()
    assert len(same) >= 4
    limit = 1.0 if ways == "kv of 4 bits" else 0.3
    assert 0 < max(abs(first[0][i] - first[1][i]) for i in same) < limit


def test_quantised_models_let_go_of_their_weights_but_for_mixtures_and_norms(folder: Path, plugins: Registry) -> None:
    loaded = load_model(ModelConfig(model=str(folder), device="cpu", quantization="int8"), plugins)
    block = loaded.module.blocks[0]
    for projection in (block.attn.qkv, block.attn.o, block.mlp.gate_up, block.mlp.down, loaded.module.head):
        projection.process_weights()
        assert projection.weight.numel() == 0
        assert hasattr(projection.multiply, "unpacked")
    assert block.attn_in.weight.numel() == 64


# --- settings --------------------------------------------------------------------------------------------


def test_an_unknown_quantization_lists_those_there_are(folder: Path, plugins: Registry) -> None:
    with pytest.raises(ConfigError, match=r"^--quantization int3: there is no such quantization. Installed: .*int8"):
        load_model(ModelConfig(model=str(folder), device="cpu", quantization="int3"), plugins)


def test_a_quantization_that_cannot_run_says_why(folder: Path, plugins: Registry) -> None:
    picky = Quantization("picky", lambda ops, options: ops.linear, supports=lambda query: f"it dislikes {query.dtype}")
    found = replace(plugins, records={**plugins.records, "quire_quantizations": {"picky": picky}})
    with pytest.raises(
        ConfigError, match=r"^--quantization picky cannot run in float32 on cpu: it dislikes float32\.$"
    ):
        load_model(ModelConfig(model=str(folder), device="cpu", quantization="picky"), found)
    bundled: Quantization = plugins.by_hook("quire_quantizations")["int8"]
    assert bundled.supports(OpQuery("cpu", "bfloat16")) is bundled.supports(OpQuery("cuda", "bfloat16")) is None
    assert bundled.supports(OpQuery("mps", "bfloat16")) == "its products are for CPUs and GPUs, not mps"


def test_an_unknown_type_of_cache_is_refused_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype must be one of auto, int8, int4; got 'fp8'"):
        ModelConfig(kv_cache_dtype="fp8")
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    printed = capsys.readouterr().out
    assert "--quantization" in printed
    assert "--kv-cache-dtype {auto,int8,int4}" in printed


@pytest.mark.parametrize("page_size", [4, 16])
def test_head_dimensions_that_4_bits_cannot_hold_are_refused_before_weights_are_read(
    tmp_path: Path, plugins: Registry, page_size: int
) -> None:
    odd = tiny_llama(tmp_path / "odd", head_dim=48)
    (odd / "model.safetensors").unlink()
    with pytest.raises(
        ConfigError, match=r"^--kv-cache-dtype int4: .* must be multiples of 32, but the model has 48\. "
    ):
        load_model(ModelConfig(model=str(odd), device="cpu", kv_cache_dtype="int4", page_size=page_size), plugins)

"""Captured decode steps give what steps give that are launched operation by operation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import hybrid_cases
import latent_cases
import pytest
from engine_rig import Rig, greedy, make_rig, rig_of
from lora_rig import Base
from repeated_steps import RepeatedSteps, device_ops

from quire.engine.graphs import capture
from quire.engine.loading import load
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import byte_tokenizer, tiny_config, tiny_llama

SETTINGS = {"max_num_seqs": 11, "max_num_batched_tokens": 24, "max_model_len": 96}
PROMPTS = [list(b"To be, or not to be"[: 3 + i]) for i in range(13)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> RepeatedSteps:
    """Steps of engines that are built from now on are captured."""
    made = RepeatedSteps()
    monkeypatch.setattr(load, "choose_ops", lambda *_: device_ops())
    monkeypatch.setattr(capture, "recorder_of", lambda device: made)
    return made


@pytest.fixture
def eager(folder: Path) -> Iterator[Rig]:
    rig = make_rig(folder, **SETTINGS)
    yield rig
    rig.engine.close()


def test_answers_do_not_change(folder: Path, eager: Rig, recorder: RepeatedSteps) -> None:
    params = [
        SamplingParams(max_tokens=4 + i, temperature=0.0 if i % 3 else 0.8, seed=i, logprobs=2 if i % 4 == 1 else None)
        for i in range(len(PROMPTS))
    ]
    captured = make_rig(folder, **SETTINGS)
    assert captured.tokens(PROMPTS, params) == eager.tokens(PROMPTS, params)
    assert recorder.launches > 5
    captured.engine.close()


@pytest.mark.parametrize("architecture", ["FalconH1ForCausalLM", "Qwen3_5ForCausalLM", "MambaForCausalLM"])
def test_states_do_not_change(
    architecture: str, tmp_path: Path, recorder: RepeatedSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in hybrid_cases.CASES if case.architecture == architecture)
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(architecture, **case.config).to_dict()))
    byte_tokenizer(tmp_path)
    found = []
    for eager in (True, False):
        with rig_of(tmp_path, None, load_format="dummy", enforce_eager=eager, **SETTINGS, **case.settings) as rig:
            found.append([rig.tokens(prompts, greedy(7, ignore_eos=True)) for prompts in (PROMPTS[:3], PROMPTS[2:9])])
    assert found[0] == found[1]
    assert recorder.launches >= 12


def test_logprobs_are_those_of_the_model(folder: Path, eager: Rig, recorder: RepeatedSteps) -> None:
    captured = make_rig(folder, **SETTINGS)
    ours, theirs = (
        [rig.add(PROMPTS[0], greedy(5, logprobs=3)), rig.add(PROMPTS[5], greedy(5))] and rig.drain()
        for rig in (captured, eager)
    )
    found, wanted = ([step.logprob for step in answers["r1", 0].logprobs] for answers in (ours, theirs))
    assert found == pytest.approx(wanted, abs=1e-5)
    assert recorder.launches >= 4
    captured.engine.close()


def test_rows_that_fill_a_step_up_change_no_page(folder: Path, recorder: RepeatedSteps) -> None:
    rig = make_rig(folder, **SETTINGS)
    pages = rig.engine._runner.kv.k[0]
    before = pages.clone()
    rig.tokens(PROMPTS[:3], greedy(6))
    used = (pages != before).flatten(1).any(1).sum()
    assert recorder.launches == 5
    assert 0 < used <= sum(-(-(len(prompt) + 6) // 4) for prompt in PROMPTS[:3])
    rig.engine.close()


def test_rows_with_adapters_and_without_share_captured_steps(tmp_path: Path, recorder: RepeatedSteps) -> None:
    base = Base(tmp_path / "base", "LlamaForCausalLM")
    folders = {
        name: base.adapter(name, r=4, lora_alpha=8, target_modules=["q_proj", "k_proj", "o_proj", "up_proj"])
        for name in "ab"
    }
    folders["table"] = base.adapter("table", r=4, lora_alpha=8, target_modules=["embed_tokens", "q_proj"])
    launches = [0]
    with rig_of(base.folder, registry.load(None, enable_lora=True), **SETTINGS, max_loras=3) as rig:
        for name, folder in folders.items():
            rig.engine.load_adapter(name, folder)
        for names in (["a", None, "b", "a"], [None, None], ["table", "a"]):
            wanted = [base.greedy(name and folders[name], p, 6) for name, p in zip(names, PROMPTS, strict=False)]
            assert tokens(rig, names) == wanted
            launches.append(recorder.launches)
    assert launches == [0, 5, 10, 10]  # an adapter of an embedding table needs the host


def test_adapters_of_latent_attention(tmp_path: Path, recorder: RepeatedSteps) -> None:
    case = next(case for case in latent_cases.CASES if case.architecture == "YoutuForCausalLM")
    base = Base(tmp_path / "base", case.architecture, **case.config)
    folders = {
        name: base.adapter(name, r=4, lora_alpha=8, target_modules=[*modules])
        for name, modules in {"a": ("q_a_proj", "o_proj"), "b": ("kv_b_proj", "o_proj")}.items()
    }
    launches = [0]
    with rig_of(base.folder, registry.load(None, enable_lora=True), **SETTINGS) as rig:
        for name, folder in folders.items():
            rig.engine.load_adapter(name, folder)
        for names in (["a", None], ["b", "a"]):
            wanted = [base.greedy(name and folders[name], p, 6) for name, p in zip(names, PROMPTS, strict=False)]
            assert tokens(rig, names) == wanted
            launches.append(recorder.launches)
    assert launches == [0, 5, 5]  # which adapters change the matrix that is absorbed, the host must know


def tokens(rig: Rig, names: Sequence[str | None]) -> list[list[int]]:
    """Six tokens after the first prompts, each with one of these adapters."""
    ids = [
        rig.add(prompt, greedy(6, ignore_eos=True), adapters=() if name is None else (use(name),))
        for prompt, name in zip(PROMPTS, names, strict=False)
    ]
    answers = rig.drain()
    return [answers[each, 0].token_ids for each in ids]


def use(name: str) -> WeightedAdapter:
    return WeightedAdapter(AdapterRef(name=name))


def test_enforce_eager_captures_nothing(folder: Path, recorder: RepeatedSteps) -> None:
    rig = make_rig(folder, enforce_eager=True, **SETTINGS)
    rig.tokens(PROMPTS[:2], greedy(4))
    assert recorder.launches == 0
    rig.engine.close()

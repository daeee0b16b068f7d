"""Whole engine steps of all bundled decoders on a fake GPU: one device, and no needless wait for it.

Values are computed, on the CPU; what a Triton kernel computes on a GPU is the reference.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import attention_cases
import dense_cases
import hybrid_cases
import latent_cases
import moe_cases
import pytest
from engine_rig import greedy, rig_of
from fake_cuda import fake_gpu, load_guard
from fake_gpu import FakeGpu
from family_case import FamilyCase
from repeated_steps import OPS

from quire.engine.graphs import capture
from quire.engine.loading import load
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.records import OpQuery, Registry
from quire_kernels import reference
from quire_kernels.candidates.capture import is_capturable
from quire_kernels.select import Ops, choose
from quire_kernels.triton_gpu.ops import MODULES
from quire_testing.tiny import byte_tokenizer, tiny_config

WITH_ADAPTERS = (*latent_cases.CASES, *hybrid_cases.CASES)
"""Of models for which steps with adapters are captured too."""

CASES = (*dense_cases.CASES, *attention_cases.CASES, *moe_cases.CASES, *WITH_ADAPTERS)
PROMPTS = [list(range(5, 5 + count)) for count in (9, 2)]


@pytest.fixture(scope="module", autouse=True)
def _guard(tmp_path_factory: pytest.TempPathFactory) -> None:
    load_guard(tmp_path_factory.mktemp("guard"))


@pytest.fixture(scope="module")
def plugins() -> dict[bool, Registry]:
    """By whether there are adapters."""
    return {enabled: registry.load(None, enable_lora=enabled) for enabled in (False, True)}


def ops_on(gpu: FakeGpu) -> Ops:
    """Those that are chosen on a GPU; a kernel is the reference, in which nothing is watched."""
    chosen = choose(OpQuery("cuda", "float32", frozenset({"sm90"})))
    kernels = {
        op: gpu.kernel(OPS.get(op, getattr(reference, op)), is_capturable(getattr(chosen, op)))
        for op in MODULES
        if op != "fused_blocks"
    }
    return replace(chosen, **kernels)


class Graphs:
    """A recorder: each launch must do what the capture did, with the same shapes and addresses."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu, self.launches = gpu, 0

    def record(self, run: Any) -> Any:
        run()
        captured = self._gpu.recorded(run)

        def launch() -> None:
            self.launches += 1
            found = self._gpu.recorded(run)
            assert not [pair for pair in zip(found, captured, strict=True) if pair[0] != pair[1]][:3]

        return launch


def steps_of(
    case: FamilyCase, found: Registry, folder: Path, patch: pytest.MonkeyPatch, params: SamplingParams
) -> tuple[list[list[str]], int]:
    """What each step of an engine waited for, and how many captured steps and draws were launched."""
    (folder / "config.json").write_text(json.dumps(tiny_config(case.architecture, **case.config).to_dict()))
    byte_tokenizer(folder)
    settings = {"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 33, "num_pages": 64, **case.settings}
    with fake_gpu() as gpu:
        graphs, waits = Graphs(gpu), []
        patch.setattr(load, "choose_ops", lambda *_: ops_on(gpu))
        patch.setattr(capture, "recorder_of", lambda device: graphs)
        with rig_of(folder, found, device="cuda", load_format="dummy", **settings) as rig:
            for prompt in PROMPTS:
                rig.add(prompt, params)
            while rig.engine.has_work:
                gpu.waits.clear()
                deltas = rig.engine.step()
                waits.append([*gpu.waits])
                assert not [delta.error for delta in deltas if delta.error is not None]
    return waits, graphs.launches


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_stay_on_the_gpu(
    case: FamilyCase, plugins: dict[bool, Registry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = greedy(8, ignore_eos=True)
    waits, launches = steps_of(case, plugins[case in WITH_ADAPTERS], tmp_path, monkeypatch, params)
    steady = waits[2:]
    assert len(steady) >= 5
    assert not [each for each in steady if len(each) > 1], "a step waits for the sampled tokens only"
    assert 5 <= launches <= 8


def test_samples_are_drawn_in_captured_steps(
    plugins: dict[bool, Registry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01, max_tokens=8, ignore_eos=True)
    waits, launches = steps_of(CASES[0], plugins[False], tmp_path, monkeypatch, params)
    assert not [each for each in waits[2:] if len(each) > 1]
    assert launches >= 10, "two of each step"

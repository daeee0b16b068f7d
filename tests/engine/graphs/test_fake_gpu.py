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


@pytest.mark.parametrize("case", CASES, ids=str)
def test_steps_stay_on_the_gpu(
    case: FamilyCase, plugins: dict[bool, Registry], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(case.architecture, **case.config).to_dict()))
    byte_tokenizer(tmp_path)
    settings = {"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 33, "num_pages": 64, **case.settings}
    with fake_gpu() as gpu:
        graphs = Graphs(gpu)
        monkeypatch.setattr(load, "choose_ops", lambda *_: ops_on(gpu))
        monkeypatch.setattr(capture, "recorder_of", lambda device: graphs)
        found = plugins[case in WITH_ADAPTERS]
        with rig_of(tmp_path, found, device="cuda", load_format="dummy", **settings) as rig:
            for prompt in PROMPTS:
                rig.add(prompt, greedy(8, ignore_eos=True))
            waits = []
            while rig.engine.has_work:
                gpu.waits.clear()
                deltas = rig.engine.step()
                waits.append([*gpu.waits])
                assert not [delta.error for delta in deltas if delta.error is not None]
    steady = waits[2:]
    assert len(steady) >= 5
    assert not [each for each in steady if len(each) > 1], "a step waits for the sampled tokens only"
    assert graphs.launches >= 5

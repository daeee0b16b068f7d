"""Captured steps of bundled architectures: nothing in them needs the host, and no launch depends on values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import attention_cases
import dense_cases
import latent_cases
import pytest
import torch
from discipline import WatchedSteps, unwatched
from engine_rig import greedy, rig_of
from family_case import FamilyCase
from repeated_steps import OPS

from quire.engine.graphs import capture
from quire.engine.loading import load
from quire.hooks import registry
from quire.records import OpQuery
from quire_kernels import reference
from quire_kernels.candidates.capture import capturable
from quire_kernels.select import choose
from quire_kernels.triton_gpu.ops import MODULES
from quire_testing.tiny import byte_tokenizer, reference_model, save

PARTS = (
    "LlamaFor",
    "GPT2LMHead",
    "GPTJ",
    "Gemma2",
    "Cohere2",
    "StableLm",
    "Olmo2",
    "Gemma3n",
    "GptOss",
    "Bloom",
    "Youtu",
)
"""Of architectures that have all parts among them; on a device the suite of `tests/gpu` captures every one."""
CASES = {str(case): case for file in (dense_cases, attention_cases, latent_cases) for case in file.CASES}
PROMPTS = [list(range(5, 5 + count)) for count in (9, 2)]


def ops_of_a_gpu(*_: Any) -> Any:
    """Those that are chosen on a GPU, except kernels."""
    functions = {op: OPS.get(op, getattr(reference, op)) for op in MODULES}
    kernels = {op: capturable(unwatched(function)) for op, function in functions.items()}
    return replace(choose(OpQuery("cuda", "float32")), **kernels)


@pytest.mark.parametrize("case", [case for name, case in CASES.items() if name.startswith(PARTS)], ids=str)
def test_a_captured_step_needs_no_host(case: FamilyCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        model = reference_model(case.architecture, case.seed, case.attention, **case.config)
    save(model, tmp_path)
    byte_tokenizer(tmp_path)
    watched = WatchedSteps(monkeypatch)
    monkeypatch.setattr(load, "choose_ops", ops_of_a_gpu)
    monkeypatch.setattr(capture, "recorder_of", lambda device: watched)
    settings = {"max_model_len": 64, "max_num_seqs": 2, "max_num_batched_tokens": 33, **case.settings}
    with rig_of(tmp_path, registry.load(None), **settings) as rig:
        rig.tokens(PROMPTS, greedy(3, ignore_eos=True))
        reason = capture.why_not(rig.engine.loaded)
    assert watched.launches >= 2 or str(reason).startswith("moe of")

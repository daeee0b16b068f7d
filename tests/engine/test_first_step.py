"""A model that was loaded has made its first step: requests do not wait for its programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.engine_process.engine_builder import EngineBuilder
from quire.hooks import registry
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request
from quire_kernels.cpu import build, isa
from quire_kernels.cpu.compiled import blocks
from quire_testing.tiny import tiny_llama


@pytest.mark.skipif(not (isa.available() and build.compiler()), reason="there are no C++ ops here")
def test_requests_compile_no_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, stages = [], blocks._stages

    def counted(*args: Any) -> Any:
        compiled.append(args)
        return stages(*args)

    monkeypatch.setattr(blocks, "_stages", counted)
    builder = EngineBuilder()
    engine: Any = builder.build(ModelConfig(model=str(tiny_llama(tmp_path)), device="cpu"), registry.load(None), 1)
    assert len(compiled) == 1
    engine.add(Request(id="r", prompt=Prompt(token_ids=(5, 6, 7)), params=SamplingParams(max_tokens=2)))
    while engine.has_work:
        engine.step()
    engine.close()
    builder.end()
    assert len(compiled) == 1


def test_a_model_that_cannot_compute_plain_text_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("it needs a picture")

    monkeypatch.setattr("quire.engine.memory.dummy_batch.run_first_step", fail)
    builder = EngineBuilder()
    engine: Any = builder.build(ModelConfig(model=str(tiny_llama(tmp_path)), device="cpu"), registry.load(None), 1)
    assert not engine.has_work
    engine.close()
    builder.end()

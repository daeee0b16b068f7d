"""A build that fails behind the start of the process that reads adapters ends that process."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.engine import build
from quire.errors import ConfigError
from quire.hooks import registry
from quire.isolation.child_process import ChildProcess
from quire.isolation.isolated_calls import IsolatedCalls
from quire.settings.model_config import ModelConfig
from quire_testing.tiny import tiny_llama


def test_the_process_for_adapters_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ChildProcess] = []
    ended: list[ChildProcess] = []

    class Counted(IsolatedCalls):
        def _release(self, process: ChildProcess) -> None:
            started.append(process)
            super()._release(process)

        def _end(self, process: ChildProcess) -> None:
            super()._end(process)
            ended.append(process)

    monkeypatch.setattr(build, "IsolatedCalls", Counted)
    config = ModelConfig(model=str(tiny_llama(tmp_path)), device="cpu", kv_cache_memory_bytes=1)
    with pytest.raises(ConfigError):
        build.build_engine(config, registry.load(None, enable_lora=True))
    assert started
    assert set(ended) == set(started)  # one process is released once for each function that it imports

"""A build that fails behind the start of the process that reads adapters ends that process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire.engine import build
from quire.errors import ConfigError
from quire.hooks import registry
from quire.isolation import process_pool
from quire.isolation.child_process import ChildProcess
from quire.settings.model_config import ModelConfig
from quire_testing.tiny import tiny_llama


def test_the_process_for_adapters_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[ChildProcess] = []
    ended: list[ChildProcess] = []

    class Counted(ChildProcess):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

        def end(self) -> None:
            super().end()
            ended.append(self)

    monkeypatch.setattr(process_pool, "ChildProcess", Counted)
    config = ModelConfig(model=str(tiny_llama(tmp_path)), device="cpu", kv_cache_memory_bytes=1)
    with pytest.raises(ConfigError):
        build.build_engine(config, registry.load(None, enable_lora=True))
    assert started
    assert set(ended) == set(started)

"""A tiny model, and patience of its requests."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_rig import rig_of
from tiered_rig import asked

from quire.engine.kv_tiers import lookup
from quire.engine.kv_tiers.rates import Rates
from quire_testing.tiny import tiny_llama


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, requests wait for pages."""
    monkeypatch.setattr(lookup, "INDEX_S", 60.0)
    monkeypatch.setattr(lookup, "MAX_READ_S", 60.0)
    monkeypatch.setattr(Rates, "compute_s", lambda self, num_tokens: None)
    monkeypatch.setattr(Rates, "should_read", lambda self, num_tokens, num_bytes: True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def expected(model: Path) -> list[int]:
    with rig_of(model) as rig:
        return asked(rig).token_ids

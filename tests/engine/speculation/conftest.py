"""A tiny model and an engine without drafts, for every module of tests that does not make its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_rig import Rig, rig_of

from quire_testing.tiny import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("tiny"), seed=3)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[Rig]:
    with rig_of(folder) as rig:
        yield rig

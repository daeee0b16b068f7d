"""Adapters on no model, and a tiny model with adapters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adapted_rig import merge, merged_answers, write_adapters
from adapter_fixture import Bench, benches_in
from engine_rig import Answer
from random_adapters import Kit

from quire_testing.tiny import tiny_llama


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[Any]:
    """Makes benches whose adapters are in the folder of the test."""
    with benches_in(tmp_path) as make:
        yield make


@pytest.fixture
def bench(benches: Any) -> Bench:
    made: Bench = benches()
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def merged(folder: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return merge(folder, adapters, tmp_path_factory.mktemp("merged"))


@pytest.fixture(scope="module")
def expected_answers(merged: dict[str, Path]) -> dict[tuple[str, int], Answer]:
    """What the model generates for each prompt with each adapter merged into its weights."""
    return merged_answers(merged)


@pytest.fixture
def kit() -> Kit:
    return Kit()

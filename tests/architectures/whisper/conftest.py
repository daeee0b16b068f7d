"""Tiny random Whisper models and what transformers generates with them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_rig import Rig, rig_of
from whisper_rig import (
    CASES,
    Asked,
    Model,
    asked_of,
)

from quire.hooks import registry
from quire.records import Registry


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("whisper"), **CASES[request.param])


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("whisper"))


@pytest.fixture
def rig(small: Model, found: Registry) -> Iterator[Rig]:
    with rig_of(small.folder, found, num_pages=600) as made:
        yield made


@pytest.fixture(scope="module")
def asked(model: Model, found: Registry) -> Asked:
    return asked_of(model, found)

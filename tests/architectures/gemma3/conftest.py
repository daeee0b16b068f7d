"""Tiny random Gemma 3 models with a vision tower."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_rig import Rig, rig_of
from gemma3_rig import CASES, PROMPTS, Model

from quire.hooks import registry
from quire.records import Registry
from quire.types import Prompt


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(None)


@pytest.fixture(scope="module", params=list(CASES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("gemma3"), **CASES[request.param])


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("gemma3"))


@pytest.fixture
def rig(narrow: Model, found: Registry) -> Iterator[Rig]:
    with rig_of(narrow.folder, found, page_size=4, max_num_batched_tokens=40) as made:
        yield made


@pytest.fixture(scope="module")
def asked(model: Model, found: Registry) -> list[tuple[Prompt, list[int]]]:
    """Prompts, and the 32 tokens that transformers gives after each."""
    with rig_of(model.folder, found) as rig:
        prompts = [model.prompt(found, rig.engine.info, text, *pictures) for text, pictures in PROMPTS]
    return [(prompt, model.greedy(prompt, *pictures)) for prompt, (_, pictures) in zip(prompts, PROMPTS, strict=True)]

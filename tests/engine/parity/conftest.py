"""Models and engines that the parity tests share."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from engine_rig import Rig, rig_of
from parity_model import Model, model_of


@pytest.fixture(scope="module")
def models() -> Iterator[Any]:
    with TemporaryDirectory() as folder:
        yield lambda architecture: model_of(architecture, folder)


@pytest.fixture(scope="module")
def llama(models: Any) -> Model:
    found: Model = models("LlamaForCausalLM")
    return found


@pytest.fixture(scope="module")
def roomy(llama: Model) -> Iterator[Rig]:
    """An engine in which nothing is preempted."""
    with rig_of(llama.folder, num_pages=750) as rig:
        yield rig

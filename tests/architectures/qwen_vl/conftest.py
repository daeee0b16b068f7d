"""Tiny random models of Qwen2-VL and Qwen2.5-VL."""

from __future__ import annotations

import pytest
from qwen_vl_rig import (
    TWO,
    TWO_AND_A_HALF,
    Kit,
    tiny,
)

from quire.hooks import registry
from quire.records import Registry


@pytest.fixture(scope="module")
def found() -> Registry:
    return registry.load(["qwen-vl"])


@pytest.fixture(scope="module", params=[TWO, TWO_AND_A_HALF])
def kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, found: Registry) -> Kit:
    return Kit(tiny(request.param, tmp_path_factory.mktemp("qwen_vl")), found)

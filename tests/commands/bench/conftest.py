"""A tiny model to profile."""

import pytest
from engine_rig import rig_of

from quire_testing.tiny import tiny_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def rig(folder):
    with rig_of(folder) as rig:
        yield rig

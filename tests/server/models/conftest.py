"""Folders of models that requests load, and a client of a server without an engine."""

import pytest
from fake_client import PretendClient, http, info, pretend_app

from quire_testing import byte_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folders of models that can be loaded (late), cannot be (corrupt), and take until they are unloaded (held)."""
    root = tmp_path_factory.mktemp("models")
    for name in ("late", "corrupt", "held"):
        byte_tokenizer(root / name)
    return root


@pytest.fixture
def pretend():
    return PretendClient(info("first"), info("second", aliases=("second", "deux")), ends_after=20)


@pytest.fixture
async def client(folder, pretend):
    async with http(pretend_app(folder / "late", pretend)) as client:
        yield client

"""A client with one engine process."""

import pytest
from client_rig import config, started
from paths import HELPERS


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS)


@pytest.fixture
async def client():
    client = await started(config("m", "a", "alias"), config("b"))
    yield client
    await client.close()

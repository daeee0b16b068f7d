"""A client of two engine processes with fake engines."""

import pytest
from client_rig import config
from paths import HELPERS

from quire.engine_process.replicas.client import ReplicatedClient
from quire.engine_process.settings import EngineProcessSettings
from quire.records import Context
from quire_plugins.routing import POLICIES


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS)


@pytest.fixture
async def start():
    clients = []

    async def started(*models, count=2, policy="round-robin", **settings):
        given = EngineProcessSettings(plugins=[], module="fake_engine_process", **settings)
        client = ReplicatedClient(models or (config("m", "a", "alias"),), given, count, POLICIES[policy](Context()))
        clients.append(client)
        client.launch()
        await client.ready()
        return client

    yield started
    for client in clients:
        await client.close()

"""Folders of models, and a client of a server without an engine that loads some on demand."""

import asyncio

import pytest
from fake_client import PretendClient, http, info, pretend_app

from quire.server.residency.registration import Registration
from quire.server.residency.size_estimate import SizeEstimate
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire_testing import byte_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    for name in ("late", "corrupt"):
        byte_tokenizer(root / name)
    return root


def registration(name, folder, size=40, **settings):
    config = ModelConfig(model=str(folder), **{"served_model_name": (name,), "load": "on-demand", **settings})
    return Registration(config=config, size=SizeEstimate(weights=size))


@pytest.fixture
def pretend():
    """One model is loaded; 100 bytes are for models, of which each takes 40."""
    client = PretendClient(info("first", memory_bytes=40), ends_after=20)
    client.memory_limit = 100
    client.sizes = dict.fromkeys(("one", "two", "late"), 40)
    return client


@pytest.fixture
def registered(folder, pretend):
    first = registration("first", folder / "late", load="startup")
    first.loaded(pretend.infos[0], 0.0)
    names = ("one", "uno")
    return [
        first,
        registration("one", folder / "late", served_model_name=names),
        registration("two", folder / "late"),
        registration("broken", folder / "corrupt"),
    ]


@pytest.fixture
async def client(folder, pretend, registered):
    config = ServerConfig(memory_budget=1 << 40, max_model_waiters=2)
    app = pretend_app(folder / "late", pretend, config, registered=registered)
    async with http(app) as client:
        yield client
        await app.state.service.residency.stop()
        await asyncio.sleep(0)

"""Models that are loaded and unloaded while the client runs."""

import asyncio
import os

import pytest
from client_rig import WITHIN_S, collect, config, started, tokens

from quire.engine_process.client import EngineClient
from quire.errors import (
    CheckpointError,
    ConfigError,
    NotFound,
    QuireError,
    StartupError,
)

# --- starting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("corrupt", CheckpointError, "The file x is truncated"),
        ("fault", QuireError, "something unforeseen"),
        ("deadly", StartupError, "ended with status 7"),
    ],
)
async def test_what_keeps_the_host_from_starting_is_raised_here(model, kind, words):
    with pytest.raises(QuireError, match=words) as caught:
        await started(config("m"), config(model))
    assert type(caught.value) is kind


async def test_a_plugin_that_cannot_be_loaded_stops_the_start():
    with pytest.raises(StartupError, match="no-such-plugin"):
        await EngineClient.start([config()], ["no-such-plugin"], module="fake_engine_process")


async def test_two_models_of_one_name_stop_the_start():
    with pytest.raises(ConfigError, match="Two models are named 'x'"):
        await started(config("m", "x"), config("m", "y", "x"))


# --- models that come and go -----------------------------------------------------------------------


async def test_a_model_is_loaded_while_others_are_served(client, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    loading = asyncio.create_task(client.load(config(f"gate:{gate}", "late")))
    assert tokens(await collect(client, "a", "r", max_tokens=3)) == [1, 2, 3]
    assert not loading.done()
    await asyncio.to_thread(gate.write_text, "")
    info = await asyncio.wait_for(loading, WITHIN_S)
    assert info.name == "late"
    assert tokens(await collect(client, "late", "s", max_tokens=1)) == [1]


async def test_a_model_that_cannot_be_loaded_leaves_the_others_alone(client):
    with pytest.raises(CheckpointError, match="truncated"):
        await client.load(config("corrupt"))
    with pytest.raises(ConfigError, match="Two models are named"):
        await client.load(config("m", "alias"))
    assert [info.name for info in client.models()] == ["a", "b"]


async def test_an_unloaded_model_is_gone_and_its_name_free(client):
    await client.unload("a")
    assert [info.name for info in client.models()] == ["b"]
    with pytest.raises(NotFound):
        await collect(client, "a", "r")
    with pytest.raises(NotFound):
        await client.unload("a")
    await client.load(config("m", "a"))
    assert tokens(await collect(client, "a", "s", max_tokens=1)) == [1]

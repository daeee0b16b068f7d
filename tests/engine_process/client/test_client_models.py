"""Models that are loaded and unloaded while the client runs."""

import asyncio
import os

import pytest
from client_rig import WITHIN_S, collect, config, drain, request, started, tokens
from delta_streams import deltas_of

from quire.engine_process.client import EngineClient
from quire.errors import (
    BadRequest,
    CheckpointError,
    ConfigError,
    ModelUnloaded,
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


async def test_a_load_reports_its_progress_and_can_be_ended(client, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    loading = asyncio.create_task(client.load(config(f"steps:{gate}", "late")))
    while not client.load_progress("late"):
        await collect(client, "a", "r", max_tokens=1)
    assert client.load_progress("late") == 0.5
    with pytest.raises(ConfigError, match="is being loaded already"):
        await client.load(config("m", "late"))
    ending = asyncio.create_task(client.unload("late"))
    await asyncio.sleep(0)
    await client.stats()  # answered after the unload arrived
    await asyncio.to_thread(gate.write_text, "")
    await asyncio.wait_for(ending, WITHIN_S)
    with pytest.raises(BadRequest, match="was unloaded while it was being loaded"):
        await loading
    assert client.load_progress("late") == 0
    assert [info.name for info in client.models()] == ["a", "b"]
    assert (await client.load(config("m", "late"))).name == "late"


async def test_a_model_is_unloaded_when_its_requests_have_ended_and_takes_no_more_meanwhile(client):
    stream = deltas_of(client, "a", request("r", max_tokens=10**6))
    await anext(stream)
    leaving = asyncio.create_task(client.unload("alias"))
    with pytest.raises(ModelUnloaded, match="is being unloaded and takes no more requests"):
        while True:
            await collect(client, "a", "s", max_tokens=1)
    with pytest.raises(BadRequest, match="being unloaded already"):
        await client.unload("a")
    assert await collect(client, "b", "t", max_tokens=1)
    assert not leaving.done()
    await stream.aclose()
    await asyncio.wait_for(leaving, WITHIN_S)
    with pytest.raises(NotFound):
        await client.unload("a")
    assert [stats.model for stats in await client.stats()] == ["b"]


async def test_force_ends_the_requests_of_the_model_and_no_others(client):
    stream, other = (deltas_of(client, name, request(name, max_tokens=10**6)) for name in "ab")
    await anext(stream)
    await anext(other)
    leaving = asyncio.create_task(client.unload("a"))
    await asyncio.wait_for(client.unload("a", force=True), WITHIN_S)
    with pytest.raises(ModelUnloaded, match="the request was ended"):
        await drain(stream)
    await leaving
    await anext(other)
    await other.aclose()
    assert [info.name for info in client.models()] == ["b"]


async def test_a_call_of_many_requests_is_not_cut_short_by_an_unload(client):
    many = [request(f"r{i}", max_tokens=3) for i in range(600)]  # more than are in flight at a time
    ended = []
    running = asyncio.create_task(client.run("a", many, lambda delta: ended.append(delta.finish_reason)))
    while not ended:
        await asyncio.sleep(0)
    await asyncio.wait_for(client.unload("a"), WITHIN_S)
    await running
    assert ended.count("length") == 600

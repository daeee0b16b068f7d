"""Models that sleep and wake while the client runs."""

import asyncio
import os

import pytest
from client_rig import WITHIN_S, collect, config, drain, request, started, tokens
from delta_streams import deltas_of

from quire.errors import ConfigError, ModelAsleep, ModelUnloaded, NotFound
from quire.types.adapter_info import AdapterInfo


async def answers(client, model, request_id="last"):
    return tokens(await collect(client, model, request_id, max_tokens=2)) == [1, 2]


@pytest.mark.parametrize("level", [1, 2])
async def test_a_model_that_sleeps_takes_no_requests_and_wakes_with_its_adapters(client, level):
    await client.adapters.load(AdapterInfo(name="style", model="a", path="style"))
    await client.sleepers.sleep("alias", level)
    assert client.sleepers.sleep_of("a").has_weights == (level == 1)
    with pytest.raises(ModelAsleep, match="`a` sleeps"):
        await collect(client, "a", "r")
    assert await answers(client, "b", "s")
    assert [info.name for info in client.models()] == ["a", "b"]
    assert [stats.model for stats in await client.stats()] == ["b"]
    await client.sleepers.wake("a")
    assert client.sleepers.sleep_of("a") is None
    assert await answers(client, "a")
    assert [info.name for info in await client.adapters.fetch()] == ["style"]
    later = await client.adapters.load(AdapterInfo(name="style", model="a", path="other"), replacing=True)
    assert client.adapters.get("style").path == later.path == "other"


async def test_running_requests_end_with_an_error_or_are_waited_for(client):
    stream, other = (deltas_of(client, name, request(name, max_tokens=10**6)) for name in "ab")
    await anext(stream)
    await anext(other)
    waiting = asyncio.create_task(client.sleepers.sleep("b", abort=False))
    await asyncio.wait_for(client.sleepers.sleep("a"), WITHIN_S)
    with pytest.raises(ModelAsleep):
        await drain(stream)
    with pytest.raises(ModelAsleep):
        await collect(client, "b", "r")
    await anext(other)
    assert not waiting.done()
    waking = asyncio.create_task(client.sleepers.wake("b"))
    await other.aclose()
    await asyncio.wait_for(asyncio.gather(waiting, waking), WITHIN_S)
    assert await answers(client, "b")


async def test_a_deeper_sleep_frees_the_weights_too(client):
    await client.sleepers.sleep("a", 1)
    await client.sleepers.sleep("a", 2)
    assert client.sleepers.sleep_of("a").has_weights is False
    await client.sleepers.sleep("a", 1)
    assert client.sleepers.sleep_of("a").level == 2
    await asyncio.gather(client.sleepers.wake("a"), client.sleepers.wake("a"))
    assert await answers(client, "a")


@pytest.mark.parametrize("level", [1, 2])
async def test_weights_and_kv_cache_are_woken_one_by_one(client, level):
    await client.sleepers.sleep("a", level)
    await client.sleepers.wake("a", ["weights"])
    sleep = client.sleepers.sleep_of("a")
    assert (sleep.tags, sleep.has_weights) == ({"kv_cache"}, True)
    with pytest.raises(ModelAsleep):
        await collect(client, "a", "r")
    await client.sleepers.wake("a", ["kv_cache"])
    assert await answers(client, "a")


async def test_weights_that_need_their_kv_cache_come_with_it():
    client = await started(config("gpu-model", "a"))
    await client.sleepers.sleep("a", 1)
    assert client.sleepers.sleep_of("a").has_weights is False
    for tag, has_weights in (("weights", False), ("kv_cache", True)):
        await client.sleepers.wake("a", [tag])
        assert (client.sleepers.sleep_of("a") is None) == has_weights
    assert await answers(client, "a")
    await client.close()


async def test_a_model_that_finds_no_memory_sleeps_on(client):
    await client.load(config("crowded", "late"))
    await client.sleepers.sleep("late")
    with pytest.raises(ConfigError, match="too little memory"):
        await client.sleepers.wake("late")
    with pytest.raises(ModelAsleep):
        await collect(client, "late", "r")
    await client.sleepers.sleep("late", 2)
    await client.sleepers.wake("late")  # it is loaded anew
    assert await answers(client, "late")


async def test_a_new_engine_process_leaves_models_asleep(client):
    await client.adapters.load(AdapterInfo(name="style", model="a", path="style"))
    await client.sleepers.sleep("a", 1)
    client.kill()
    while client.state == "ready":
        await asyncio.sleep(0)
    assert await answers(client, "b", "r")
    assert client.sleepers.sleep_of("a").has_weights is False
    assert [info.name for info in client.models()] == ["b", "a"]
    with pytest.raises(ModelAsleep):
        await collect(client, "a", "s")
    await client.sleepers.wake("a")
    assert await answers(client, "a")
    assert [info.name for info in await client.adapters.fetch()] == ["style"]


async def test_a_model_is_unloaded_in_its_sleep_and_its_name_is_free(client):
    for level in (1, 2):
        await client.sleepers.sleep("a", level)
        await client.unload("a")
        with pytest.raises(NotFound):
            await client.sleepers.wake("a")
        await client.load(config("m", "a"))
        assert await answers(client, "a", f"r{level}")


async def test_a_model_that_is_being_unloaded_neither_sleeps_nor_wakes(client):
    stream = deltas_of(client, "a", request("r", max_tokens=10**6))
    await anext(stream)
    leaving = asyncio.create_task(client.unload("a"))
    await asyncio.sleep(0)
    for call in (client.sleepers.sleep, client.sleepers.wake):
        with pytest.raises(ModelUnloaded):
            await call("a")
        with pytest.raises(NotFound):
            await call("z")
    await stream.aclose()
    await leaving


async def test_a_load_by_a_wake_shows_its_progress_and_an_unload_ends_after_it(client, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    loading = asyncio.create_task(client.load(config(f"steps:{gate}", "late")))
    await asyncio.to_thread(gate.write_text, "")
    await loading
    await client.sleepers.sleep("late", 2)
    waking = asyncio.create_task(client.sleepers.wake("late"))
    while not client.load_progress("late"):
        await collect(client, "b", "r", max_tokens=1)
    leaving = asyncio.create_task(client.unload("late"))
    await asyncio.to_thread(gate.write_text, "")
    await asyncio.wait_for(asyncio.gather(waking, leaving), WITHIN_S)
    assert [info.name for info in client.models()] == ["a", "b"]

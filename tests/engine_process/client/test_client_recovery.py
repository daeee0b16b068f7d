"""Engine processes that die are replaced."""

import asyncio
import os
import signal

import pytest
from client_rig import collect, config, drain, request, started, tokens
from delta_streams import deltas_of
from fake_engine_process import DIES

from quire.engine_process.supervisor import RestartPolicy, Restarts
from quire.errors import (
    EngineDied,
)

# --- death and recovery ----------------------------------------------------------------------------


async def test_a_host_killed_mid_stream_ends_its_streams_and_comes_back(client):
    first = client.engine_pid
    stream = deltas_of(client, "a", request("r", max_tokens=10**6))
    await anext(stream)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EngineDied, match="killed by signal 9"):
        await drain(stream)
    assert client.state == "restarting"
    assert not client.alive
    assert await client.stats() == []
    assert tokens(await collect(client, "b", "s", max_tokens=2)) == [1, 2]
    assert client.engine_pid != first
    assert (client.state, [info.name for info in client.models()]) == ("ready", ["a", "b"])


async def test_a_host_that_dies_in_a_step_is_replaced(client):
    with pytest.raises(EngineDied):
        await collect(client, "a", "r", DIES)
    assert tokens(await collect(client, "a", "s", max_tokens=1)) == [1]


async def test_models_loaded_later_are_loaded_again(client):
    await client.load(config("m", "late"))
    await client.unload("b")
    with pytest.raises(EngineDied):
        await collect(client, "a", "r", DIES)
    assert tokens(await collect(client, "late", "s", max_tokens=1)) == [1]
    assert [info.name for info in client.models()] == ["a", "late"]


async def test_a_model_loaded_later_that_cannot_be_loaded_again_is_left_out(client, tmp_path):
    lost = []
    client.on_model_lost(lambda name, error: lost.append((name, error.message)))
    await client.load(config(f"once:{tmp_path / 'marker'}", "late"))
    with pytest.raises(EngineDied):
        await collect(client, "late", "r", DIES)
    assert tokens(await collect(client, "a", "s", max_tokens=1)) == [1]
    assert [info.name for info in client.models()] == ["a", "b"]
    assert lost == [("late", "It is gone.")]


async def test_a_model_that_was_being_unloaded_does_not_come_back(client):
    stream = deltas_of(client, "b", request("r", max_tokens=10**6))
    await anext(stream)
    leaving = asyncio.create_task(client.unload("b"))
    await anext(stream)
    os.kill(client.engine_pid, signal.SIGKILL)
    with pytest.raises(EngineDied):
        await drain(stream)
    await leaving
    assert tokens(await collect(client, "a", "s", max_tokens=1)) == [1]
    assert [info.name for info in client.models()] == ["a"]
    assert [stats.model for stats in await client.stats()] == ["a"]


async def test_a_host_that_dies_too_often_is_given_up():
    client = await started(max_restarts=1)
    try:
        for request_id in "ab":
            with pytest.raises(EngineDied):
                await collect(client, "m", request_id, DIES)
        with pytest.raises(EngineDied, match="not running"):
            await collect(client, "m", "c")
        assert client.state == "failed"
        assert await client.stats() == []
    finally:
        await client.close()


async def test_a_model_that_cannot_be_loaded_again_uses_up_the_restarts(tmp_path):
    client = await started(config(f"once:{tmp_path / 'marker'}", "m"), max_restarts=2)
    try:
        with pytest.raises(EngineDied):
            await collect(client, "m", "a", DIES)
        with pytest.raises(EngineDied, match="not running"):
            await collect(client, "m", "b")
        assert client.state == "failed"
    finally:
        await client.close()


async def test_a_request_does_not_wait_forever_for_a_host_that_is_restarting(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opening = asyncio.create_task(asyncio.to_thread(gate.write_text, ""))
    client = await started(config(f"gate:{gate}", "m"), wait_ready_s=0.0)
    try:
        await opening
        with pytest.raises(EngineDied):
            await collect(client, "m", "a", DIES)
        with pytest.raises(EngineDied, match="not running"):
            await collect(client, "m", "b")
    finally:
        await client.close()


def test_restarts_are_counted_within_a_window():
    now = [0.0]
    restarts = Restarts(RestartPolicy(max_restarts=2, window_s=10), clock=lambda: now[0])
    assert [restarts.allow() for _ in range(3)] == [True, True, False]
    now[0] = 10.5
    assert restarts.allow()

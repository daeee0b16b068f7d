"""Several engine processes behind one client: where requests go, and what remains when one of them ends."""

import asyncio
import os
import signal

import pytest
from client_rig import collect, config, drain, request, tokens
from delta_streams import deltas_of
from fake_engine_process import DIES, NEVER_ENDS, REFUSED
from reference_cycles import cyclic

from quire.errors import (
    BadRequest,
    CheckpointError,
    ConfigError,
    EngineDied,
    ModelAsleep,
    ModelUnloaded,
    NotFound,
    Overloaded,
)
from quire.params.sampling import SamplingParams
from quire.types import Prompt, Request

ENDLESS = 10**6


def in_flight(client):
    return [replica.num_in_flight for replica in client.replicas]


def loads(client):
    return [client._router.load(number) for number in range(len(client.replicas))]


async def opened(client, request_id, model="a", **params):
    stream = deltas_of(client, model, request(request_id, max_tokens=ENDLESS, **params))
    await anext(stream)
    return stream


async def test_requests_are_answered_by_every_replica_under_names_and_aliases(start):
    client = await start()
    streams = [await opened(client, name, model) for name, model in (("r", "a"), ("s", "alias"))]
    assert in_flight(client) == [1, 1]
    for stream in streams:
        await stream.aclose()
    assert (in_flight(client), loads(client)) == ([0, 0], [0, 0])
    assert tokens(await collect(client, "a", "t", max_tokens=3)) == [1, 2, 3]
    with pytest.raises(NotFound):
        await collect(client, "missing", "u")


async def test_a_call_with_many_requests_is_spread_and_ends_when_all_have(start):
    client = await start()
    many = [Request(id=str(i), prompt=Prompt(token_ids=(1,)), params=SamplingParams(max_tokens=2)) for i in range(600)]
    ended = []
    await client.run("a", many, lambda delta: delta.finish_reason and ended.append(delta.request_id))
    assert sorted(ended, key=int) == [str(i) for i in range(600)]
    assert (in_flight(client), loads(client)) == ([0, 0], [0, 0])


async def test_a_request_leaves_nothing_for_the_garbage_collector(start):
    client = await start()
    with cyclic("quire") as left:
        await client.run("a", [request("r", max_tokens=5), request("s", max_tokens=3)], lambda delta: None)
    assert not left


async def test_the_first_error_of_a_call_ends_its_requests_on_all_replicas(start):
    client = await start()
    requests = [request("r", NEVER_ENDS), request("s", REFUSED)]
    with pytest.raises(BadRequest, match="No such thing"):
        await client.run("a", requests, lambda delta: None)
    assert (in_flight(client), loads(client)) == ([0, 0], [0, 0])
    assert [stats.num_running for stats in await client.stats()] == [0, 0]


async def test_a_request_that_cannot_be_sent_leaves_nothing(start):
    client = await start()
    with pytest.raises(BadRequest, match="64 bits"):
        await collect(client, "a", "r", 2**70)
    assert (in_flight(client), loads(client)) == ([0, 0], [0, 0])


async def test_an_id_is_in_flight_once(start):
    client = await start()
    stream = await opened(client, "r")
    with pytest.raises(BadRequest, match="already in flight"):
        await collect(client, "a", "r")
    await stream.aclose()


async def test_abort_finds_the_replica(start):
    client = await start()
    streams = [await opened(client, name) for name in "rs"]
    client.abort("s")
    client.abort("unknown")
    assert [delta.finish_reason async for delta in streams[1]][-1] == "abort"
    assert in_flight(client) == [1, 0]
    await streams[0].aclose()


async def test_one_replica_dies_and_the_others_go_on(start):
    client = await start()
    streams = [await opened(client, name) for name in "rs"]
    first, second = (replica.engine_pid for replica in client.replicas)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EngineDied, match="killed by signal 9"):
        await drain(streams[0])
    assert (client.replicas[0].alive, client.alive, client.unavailable) == (False, True, None)
    held = [await opened(client, name) for name in "tu"]  # both go to the one that runs
    assert in_flight(client) == [0, 3]
    await client.replicas[0].wait_ready()
    assert tokens(await collect(client, "a", "v", max_tokens=1)) == [1]
    assert (client.replicas[0].engine_pid != first, client.replicas[1].engine_pid == second) == (True, True)
    for stream in [streams[1], *held]:
        assert (await anext(stream)).token_ids
        await stream.aclose()
    assert loads(client) == [0, 0]


async def test_a_frozen_replica_is_replaced(start):
    client = await start(engine_timeout_s=1.0)
    frozen = client.replicas[0].engine_pid
    os.kill(frozen, signal.SIGSTOP)
    with pytest.raises(EngineDied, match="did not answer"):
        await collect(client, "a", "r", NEVER_ENDS)
    await client.replicas[0].wait_ready()
    assert client.replicas[0].engine_pid != frozen


async def test_with_all_replicas_down_a_request_waits_for_the_first(start):
    client = await start()
    for name in "rs":
        with pytest.raises(EngineDied):
            await collect(client, "a", name, DIES)
    assert tokens(await collect(client, "a", "t", max_tokens=2)) == [1, 2]


async def test_the_client_fails_when_the_last_replica_is_given_up(start):
    client = await start(max_restarts=0)
    failed = asyncio.create_task(client.failed())
    with pytest.raises(EngineDied):
        await collect(client, "a", "r", DIES)
    await client.replicas[0].failed()
    assert (client.unavailable, failed.done()) == (None, False)
    assert tokens(await collect(client, "a", "s", max_tokens=1)) == [1]
    os.kill(client.replicas[1].engine_pid, signal.SIGKILL)
    await failed
    assert "ended too often" in client.unavailable
    with pytest.raises(EngineDied):
        await collect(client, "a", "t")


async def test_models_come_and_go_on_all_replicas(start, tmp_path):
    client = await start()
    info = await client.load(config("m", "late"))
    assert [[one.name for one in replica.models()] for replica in client.replicas] == [["a", "late"]] * 2
    assert info.name == "late"
    streams = [await opened(client, name, "late") for name in "rs"]
    assert in_flight(client) == [1, 1]
    leaving = asyncio.create_task(client.unload("late"))
    await asyncio.sleep(0)
    with pytest.raises(ModelUnloaded):
        await collect(client, "late", "t")
    for stream in streams:
        await stream.aclose()
    await leaving
    assert [one.name for one in client.models()] == ["a"]
    with pytest.raises(NotFound):
        await client.unload("late")


async def test_a_model_that_one_replica_cannot_load_is_loaded_on_none(start, tmp_path):
    client = await start()
    with pytest.raises(CheckpointError, match="It is gone"):
        await client.load(config(f"once:{tmp_path / 'marker'}", "late"))
    assert [one.name for one in client.models()] == ["a"]
    assert client.load_progress("late") == 0
    with pytest.raises(ConfigError, match="Two models"):
        await client.load(config("m", "a"))
    assert tokens(await collect(client, "a", "s", max_tokens=1)) == [1]


async def test_a_model_that_cannot_be_loaded_at_the_start_ends_all(start):
    with pytest.raises(CheckpointError):
        await start(config("corrupt"))


async def test_statistics_name_the_engine(start):
    client = await start(config("m", "a"), config("m", "b"))
    assert [(stats.model, stats.engine) for stats in await client.stats()] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


async def test_closing_lets_requests_end_and_takes_no_more(start):
    client = await start()
    running = [asyncio.create_task(collect(client, "a", name, max_tokens=50)) for name in "rs"]
    while sum(in_flight(client)) < 2:
        await asyncio.sleep(0)
    closing = asyncio.create_task(client.close(drain_s=60))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await collect(client, "a", "t")
    assert [len(deltas) for deltas in await asyncio.gather(*running)] == [50, 50]
    await closing
    assert [replica.state for replica in client.replicas] == ["closed", "closed"]


async def test_a_model_sleeps_and_wakes_on_all_replicas(start):
    client = await start()
    await client.sleepers.sleep("a", level=2)
    assert client.sleepers.sleep_of("a").level == 2
    with pytest.raises(ModelAsleep):
        await collect(client, "a", "r")
    for call in (client.sleepers.sleep, client.sleepers.wake):
        with pytest.raises(NotFound):
            await call("z")
    await client.sleepers.wake("a")
    assert client.sleepers.sleep_of("a") is None
    assert tokens(await collect(client, "a", "s", max_tokens=1)) == [1]

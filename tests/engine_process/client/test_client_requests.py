"""Requests travel from the client to the engine process and their deltas return."""

import asyncio
from contextlib import aclosing

import pytest
from client_rig import collect, request, tokens
from delta_streams import deltas_of
from fake_engine_process import NEVER_ENDS, RAISES, REFUSED, SEQ_ERROR
from reference_cycles import cyclic

from quire.errors import (
    BadRequest,
    NotFound,
    PluginFailed,
    QuireError,
)


async def test_a_request_travels_to_the_host_and_its_deltas_back(client):
    assert (client.state, client.alive) == ("ready", True)
    assert [info.name for info in client.models()] == ["a", "b"]
    deltas = await collect(client, "a", "r", max_tokens=5)
    assert tokens(deltas) == [1, 2, 3, 4, 5]
    assert deltas[-1].finish_reason == "length"
    assert client.num_in_flight == 0


async def test_a_request_leaves_nothing_for_the_garbage_collector(client):
    with cyclic("quire") as left:
        await client.run("a", [request("r", max_tokens=5), request("s", max_tokens=3)], lambda delta: None)
    assert not left


async def test_aliases_lead_to_the_model_and_unknown_names_to_an_error(client):
    assert tokens(await collect(client, "alias", "r", max_tokens=1)) == [1]
    with pytest.raises(NotFound, match="`nope` does not exist"):
        await collect(client, "nope", "r")


async def test_many_requests_on_two_models_get_their_own_outputs(client):
    jobs = [collect(client, "ab"[i % 2], f"r{i}", max_tokens=i + 1, n=1 + i % 3) for i in range(40)]
    for i, deltas in enumerate(await asyncio.gather(*jobs)):
        assert {delta.request_id for delta in deltas} == {f"r{i}"}
        for index in range(1 + i % 3):
            assert tokens(d for d in deltas if d.index == index) == list(range(1, i + 2))


async def test_an_id_in_flight_cannot_be_used_twice(client):
    async with aclosing(deltas_of(client, "a", request("r", max_tokens=10**6))) as stream:
        await anext(stream)
        with pytest.raises(BadRequest, match="already in flight"):
            await collect(client, "a", "r")
        assert tokens([await anext(stream)])


async def test_a_refusal_arrives_as_the_exception_it_was(client):
    with pytest.raises(BadRequest, match="No such thing") as caught:
        await collect(client, "a", "r", REFUSED)
    assert caught.value.param == "prompt"
    with pytest.raises(BadRequest, match="64 bits"):
        await collect(client, "a", "s", max_tokens=10**30)
    assert client.num_in_flight == 0


async def test_an_error_of_one_seq_ends_its_request(client):
    with pytest.raises(PluginFailed, match="a processor failed"):
        await collect(client, "a", "r", SEQ_ERROR, n=2, max_tokens=10**6)
    assert [stats.num_running for stats in await client.stats()] == [0, 0]


async def test_a_failed_step_is_an_error_of_its_requests_and_the_host_lives_on(client):
    pid = client.engine_pid
    with pytest.raises(QuireError, match="no room"):
        await collect(client, "a", "r", RAISES)
    assert tokens(await collect(client, "a", "s", max_tokens=2)) == [1, 2]
    assert client.engine_pid == pid


async def test_a_reader_that_goes_away_aborts_its_request(client):
    async with aclosing(deltas_of(client, "a", request("r", max_tokens=10**6))) as stream:
        await anext(stream)
    assert client.num_in_flight == 0
    assert [stats.num_running for stats in await client.stats()] == [0, 0]


async def test_a_cancelled_reader_aborts_its_request(client):
    task = asyncio.create_task(collect(client, "a", "r", NEVER_ENDS))
    while not client.num_in_flight:
        await asyncio.sleep(0)
    assert [stats.num_running for stats in await client.stats()] == [1, 0]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [stats.num_running for stats in await client.stats()] == [0, 0]


async def test_aborting_ends_the_stream_with_the_reason_abort(client):
    stream = deltas_of(client, "a", request("r", max_tokens=10**6, n=2))
    await anext(stream)
    client.abort("r", 0)
    client.abort("unknown")
    seen = []
    async for delta in stream:
        seen.append(delta)
        if len(seen) > 10 and client.num_in_flight:
            client.abort("r")
    ends = [delta for delta in seen if delta.finish_reason]
    assert sorted((delta.index, delta.finish_reason) for delta in ends) == [(0, "abort"), (1, "abort")]
    assert [stats.num_running for stats in await client.stats()] == [0, 0]


async def test_figures_come_from_the_host(client):
    await collect(client, "b", "r", max_tokens=3)
    assert [(stats.model, stats.num_steps_total) for stats in await client.stats()] == [("a", 0), ("b", 3)]
    stats, rows = await client.stats_and_plugin_calls()
    assert [one.model for one in stats] == ["a", "b"]
    assert isinstance(rows, list)

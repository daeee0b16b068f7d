"""Requests in flight: who gets their deltas, and what one of those that belong together does to the others."""

from contextlib import aclosing
from pathlib import Path

import pytest
from delta_streams import deltas_of
from fake_host import DIES, NEVER_ENDS, REFUSED, SEQ_ERROR

from quire.config import ModelConfig
from quire.errors import BadRequest, HostDied, NotFound, PluginFailed
from quire.host.client import Client
from quire.host.flights import Flights, Party
from quire.sampling import SamplingParams
from quire.types import Delta, Prompt, Request


@pytest.fixture
async def client(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    client = await Client.start([ModelConfig(model="m", max_num_seqs=4)], [], module="fake_host")
    yield client
    await client.close()


def request(request_id, *token_ids, **params):
    return Request(id=request_id, prompt=Prompt(token_ids=token_ids or (1,)), params=SamplingParams(**params))


def tokens(deltas):
    return [token for delta in deltas for token in delta.token_ids]


async def collect(client, requests):
    return [delta async for delta in deltas_of(client, "m", *requests)]


async def num_running(client):
    return [stats.num_running for stats in await client.stats()]


async def test_many_requests_come_back_whole_and_apart(client):
    requests = [request(f"r{i}", max_tokens=1 + i % 3, n=1 + i % 2) for i in range(100)]
    found = {}
    for delta in await collect(client, requests):
        found.setdefault((delta.request_id, delta.index), []).extend(delta.token_ids)
    assert found == {(f"r{i}", j): list(range(1, 2 + i % 3)) for i in range(100) for j in range(1 + i % 2)}
    assert client.num_in_flight == 0


async def test_a_long_list_leaves_room_in_the_queue(client):
    requests = [request("long", max_tokens=10**6), *(request(f"r{i}", NEVER_ENDS) for i in range(50))]
    async with aclosing(deltas_of(client, "m", *requests)) as stream:
        await anext(stream)
        assert await num_running(client) == [8]  # as many as are computed at a time, and as many that are next


@pytest.mark.parametrize(
    ("token_id", "error"), [(REFUSED, BadRequest), (SEQ_ERROR, PluginFailed), (DIES, HostDied)], ids=str
)
async def test_an_error_of_one_ends_the_others(client, token_id, error):
    others = [request(f"r{i}", NEVER_ENDS) for i in range(3)]
    with pytest.raises(error):
        await collect(client, [*others[:2], request("bad", token_id, n=2, max_tokens=9), others[2]])
    assert client.num_in_flight == 0
    if error is not HostDied:
        assert await num_running(client) == [0]


async def test_a_reader_that_goes_away_aborts_what_has_not_ended(client):
    requests = [request("never", NEVER_ENDS), request("long", max_tokens=10**6), request("short", max_tokens=1)]
    async with aclosing(deltas_of(client, "m", *requests)) as stream:
        await anext(stream)
    assert client.num_in_flight == 0
    assert await num_running(client) == [0]


async def test_an_id_that_is_used_twice_or_an_unknown_model_is_refused(client):
    with pytest.raises(BadRequest, match="already in flight"):
        await collect(client, [request("r", NEVER_ENDS), request("r")])
    assert await num_running(client) == [0]
    with pytest.raises(NotFound):
        await anext(deltas_of(client, "nope", request("r")))


def test_deltas_go_to_whoever_takes_them_at_once():
    flights, seen = Flights(), []
    flights.begin("m", request("r"), Party(seen.append))
    for i in range(3):
        flights.take([Delta(request_id="r", token_ids=(i,), finish_reason="stop" if i == 2 else None)])
        assert tokens(seen) == list(range(i + 1))
    flights.take([Delta(request_id="forgotten")])
    assert (len(seen), len(flights)) == (3, 0)


async def test_deltas_after_the_end_of_a_seq_are_dropped():
    flights, seen = Flights(), []
    party = Party(seen.append)
    flights.begin("m", request("r", n=2), party)
    flights.take([Delta(request_id="r", index=0, finish_reason="stop")])
    flights.take([Delta(request_id="r", index=0, token_ids=(9,)), Delta(request_id="r", index=1, finish_reason="stop")])
    assert [delta.index for delta in seen] == [0, 1]
    await party.at_most(0)


async def test_the_first_error_counts_and_nothing_comes_after_it():
    flights, seen = Flights(), []
    party = Party(seen.append)
    flights.begin("m", request("r"), party)
    flights.take([Delta(request_id="r", token_ids=(1,))])
    flights.fail(HostDied("first"))
    flights.fail(HostDied("second"))
    flights.take([Delta(request_id="r", token_ids=(2,))])
    assert tokens(seen) == [1]
    with pytest.raises(HostDied, match="first"):
        await party.at_most(0)


async def test_who_cannot_take_a_delta_ends_alone():
    def fails(delta):
        raise ValueError("no room")

    flights, seen = Flights(), []
    party = Party(fails)
    flights.begin("m", request("a"), party)
    flights.begin("m", request("b"), Party(seen.append))
    flights.take([Delta(request_id="a", token_ids=(1,)), Delta(request_id="b", token_ids=(2,))])
    assert tokens(seen) == [2]
    with pytest.raises(ValueError, match="no room"):
        await party.at_most(0)


async def test_draining_waits_for_the_last_request():
    flights = Flights()
    assert await flights.drained(0)
    flight = flights.begin("m", request("r"), Party(print))
    assert not await flights.drained(0)
    flights.end(flight)
    assert await flights.drained(0)

"""Requests in flight: who gets their deltas, and what one of those that belong together does to the others."""

from contextlib import aclosing

import pytest
from delta_streams import deltas_of
from fake_engine_process import DIES, NEVER_ENDS, REFUSED, SEQ_ERROR
from paths import HELPERS

from quire.engine_process.client import EngineClient
from quire.engine_process.inflight import InFlightRequests, RequestBatch
from quire.errors import BadRequest, EngineDied, NotFound, PluginFailed
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request, SeqDelta


@pytest.fixture
async def client(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS)
    client = await EngineClient.start([ModelConfig(model="m", max_num_seqs=4)], [], module="fake_engine_process")
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
    ("token_id", "error"), [(REFUSED, BadRequest), (SEQ_ERROR, PluginFailed), (DIES, EngineDied)], ids=str
)
async def test_an_error_of_one_ends_the_others(client, token_id, error):
    others = [request(f"r{i}", NEVER_ENDS) for i in range(3)]
    with pytest.raises(error):
        await collect(client, [*others[:2], request("bad", token_id, n=2, max_tokens=9), others[2]])
    assert client.num_in_flight == 0
    if error is not EngineDied:
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


def test_deltas_go_to_their_callback_synchronously():
    entries, seen = InFlightRequests(), []
    entries.begin("m", request("r"), RequestBatch(seen.append))
    for i in range(3):
        entries.on_deltas([SeqDelta(request_id="r", token_ids=(i,), finish_reason="stop" if i == 2 else None)])
        assert tokens(seen) == list(range(i + 1))
    entries.on_deltas([SeqDelta(request_id="forgotten")])
    assert (len(seen), len(entries)) == (3, 0)


async def test_deltas_after_the_end_of_a_seq_are_dropped():
    entries, seen = InFlightRequests(), []
    batch = RequestBatch(seen.append)
    entries.begin("m", request("r", n=2), batch)
    entries.on_deltas([SeqDelta(request_id="r", index=0, finish_reason="stop")])
    entries.on_deltas(
        [SeqDelta(request_id="r", index=0, token_ids=(9,)), SeqDelta(request_id="r", index=1, finish_reason="stop")]
    )
    assert [delta.index for delta in seen] == [0, 1]
    await batch.wait_until(0)


async def test_the_first_error_counts_and_nothing_comes_after_it():
    entries, seen = InFlightRequests(), []
    batch = RequestBatch(seen.append)
    entries.begin("m", request("r"), batch)
    entries.on_deltas([SeqDelta(request_id="r", token_ids=(1,))])
    entries.fail(EngineDied("first"))
    entries.fail(EngineDied("second"))
    entries.on_deltas([SeqDelta(request_id="r", token_ids=(2,))])
    assert tokens(seen) == [1]
    with pytest.raises(EngineDied, match="first"):
        await batch.wait_until(0)


async def test_who_cannot_take_a_delta_ends_alone():
    def fails(delta):
        raise ValueError("no room")

    entries, seen = InFlightRequests(), []
    batch = RequestBatch(fails)
    entries.begin("m", request("a"), batch)
    entries.begin("m", request("b"), RequestBatch(seen.append))
    entries.on_deltas([SeqDelta(request_id="a", token_ids=(1,)), SeqDelta(request_id="b", token_ids=(2,))])
    assert tokens(seen) == [2]
    with pytest.raises(ValueError, match="no room"):
        await batch.wait_until(0)


async def test_draining_waits_for_the_last_request():
    entries = InFlightRequests()
    assert await entries.drained(0)
    entry = entries.begin("m", request("r"), RequestBatch(print))
    assert not await entries.drained(0)
    entries.end(entry)
    assert await entries.drained(0)

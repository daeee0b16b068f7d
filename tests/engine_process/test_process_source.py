"""Engine processes that are started ahead: one is kept, taken once, and ends with the source."""

import asyncio

import pytest
from client_rig import collect, config
from paths import HELPERS

from quire.engine_process.client import EngineClient
from quire.engine_process.wire.process_source import ProcessSource


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS)


@pytest.fixture
def source():
    made = ProcessSource("fake_engine_process", keeps_one=True)
    yield made
    made.close()


def test_one_process_is_kept_and_taken_once(source):
    source.prepare()
    source.prepare()
    kept = source._kept
    first, second = source.take(), source.take()
    assert (first, second is kept) == (kept, False)
    for process in (first, second):
        process.close()


def test_a_kept_process_that_ended_is_not_taken(source):
    source.prepare()
    dead = source._kept
    dead.process.kill()
    dead.process.wait()
    taken = source.take()
    assert taken is not dead
    assert taken.process.poll() is None
    taken.close()


def test_the_kept_process_ends_with_the_source_which_keeps_none_afterwards(source):
    source.prepare()
    kept = source._kept
    source.close()
    source.prepare()
    assert (kept.process.returncode, source._kept) == (-9, None)


async def test_a_lost_engine_process_is_replaced_by_the_kept_one_and_the_next_is_prepared(source):
    client = await EngineClient.start([config("m", "a")], [], module="fake_engine_process", processes=source)
    kept = source._kept
    first = client.engine_pid
    client.kill()
    while client.state == "ready":
        await asyncio.sleep(0)
    assert len(await collect(client, "a", "r", max_tokens=2)) == 2
    assert first != client.engine_pid == kept.process.pid
    assert source._kept is not kept
    await client.close()
    assert source._kept is None

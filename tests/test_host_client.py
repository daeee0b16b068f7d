import asyncio
import os
import select
import signal
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from delta_streams import deltas_of
from fake_host import DIES, NEVER_ENDS, RAISES, REFUSED, SEQ_ERROR

from quire.config import ModelConfig
from quire.errors import (
    BadRequest,
    CheckpointError,
    ConfigError,
    HostDied,
    NotFound,
    Overloaded,
    PluginFailed,
    QuireError,
    StartupError,
)
from quire.host.client import Client
from quire.host.connection import Connection
from quire.host.frames import framed
from quire.host.protocol import Ask
from quire.host.settings import HostSettings
from quire.host.supervisor import RestartPolicy, Restarts
from quire.sampling import SamplingParams
from quire.types import Prompt, Request

TESTS = Path(__file__).parent
WITHIN_S = 60
"""Longest wait for another process; reached only when something is broken."""


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def config(model="m", *names):
    return ModelConfig(model=model, served_model_name=names)


async def started(*models, **settings):
    return await Client.start(models or (config(),), [], module="fake_host", **settings)


@pytest.fixture
async def client():
    client = await started(config("m", "a", "alias"), config("b"))
    yield client
    await client.close()


def request(request_id, *token_ids, **params):
    return Request(id=request_id, prompt=Prompt(token_ids=token_ids or (1,)), params=SamplingParams(**params))


async def collect(client, model, *args, **params):
    return [delta async for delta in deltas_of(client, model, request(*args, **params))]


async def drain(stream):
    async for _ in stream:
        pass


def tokens(deltas):
    return [token for delta in deltas for token in delta.token_ids]


def wait_for_exit(pid):
    """Whether the process ends (or has ended)."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], WITHIN_S)[0])
    finally:
        os.close(handle)


async def test_a_request_travels_to_the_host_and_its_deltas_back(client):
    assert (client.state, client.alive) == ("ready", True)
    assert [info.name for info in client.models()] == ["a", "b"]
    deltas = await collect(client, "a", "r", max_tokens=5)
    assert tokens(deltas) == [1, 2, 3, 4, 5]
    assert deltas[-1].finish_reason == "length"
    assert client.num_in_flight == 0


async def test_aliases_lead_to_the_model_and_unknown_names_to_an_error(client):
    assert tokens(await collect(client, "alias", "r", max_tokens=1)) == [1]
    with pytest.raises(NotFound, match="`nope` does not exist"):
        await collect(client, "nope", "r")


async def test_many_requests_on_two_models_are_told_apart(client):
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
    pid = client.host_pid
    with pytest.raises(QuireError, match="no room"):
        await collect(client, "a", "r", RAISES)
    assert tokens(await collect(client, "a", "s", max_tokens=2)) == [1, 2]
    assert client.host_pid == pid


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
    stats, rows = await client.figures()
    assert [one.model for one in stats] == ["a", "b"]
    assert isinstance(rows, list)


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
        await Client.start([config()], ["no-such-plugin"], module="fake_host")


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


# --- death and recovery ----------------------------------------------------------------------------


async def test_a_host_killed_mid_stream_ends_its_streams_and_comes_back(client):
    first = client.host_pid
    stream = deltas_of(client, "a", request("r", max_tokens=10**6))
    await anext(stream)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(HostDied, match="killed by signal 9"):
        await drain(stream)
    assert client.state == "restarting"
    assert not client.alive
    assert await client.stats() == []
    assert tokens(await collect(client, "b", "s", max_tokens=2)) == [1, 2]
    assert client.host_pid != first
    assert (client.state, [info.name for info in client.models()]) == ("ready", ["a", "b"])


async def test_a_host_that_dies_in_a_step_is_replaced(client):
    with pytest.raises(HostDied):
        await collect(client, "a", "r", DIES)
    assert tokens(await collect(client, "a", "s", max_tokens=1)) == [1]


async def test_models_loaded_later_are_loaded_again(client):
    await client.load(config("m", "late"))
    await client.unload("b")
    with pytest.raises(HostDied):
        await collect(client, "a", "r", DIES)
    assert tokens(await collect(client, "late", "s", max_tokens=1)) == [1]
    assert [info.name for info in client.models()] == ["a", "late"]


async def test_a_host_that_dies_too_often_is_given_up():
    client = await started(max_restarts=1)
    try:
        for request_id in "ab":
            with pytest.raises(HostDied):
                await collect(client, "m", request_id, DIES)
        with pytest.raises(HostDied, match="not running"):
            await collect(client, "m", "c")
        assert client.state == "failed"
        assert await client.stats() == []
    finally:
        await client.close()


async def test_a_model_that_cannot_be_loaded_again_uses_up_the_restarts(tmp_path):
    client = await started(config(f"once:{tmp_path / 'marker'}", "m"), max_restarts=2)
    try:
        with pytest.raises(HostDied):
            await collect(client, "m", "a", DIES)
        with pytest.raises(HostDied, match="not running"):
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
        with pytest.raises(HostDied):
            await collect(client, "m", "a", DIES)
        with pytest.raises(HostDied, match="not running"):
            await collect(client, "m", "b")
    finally:
        await client.close()


def test_restarts_are_counted_within_a_window():
    now = [0.0]
    restarts = Restarts(RestartPolicy(most=2, window_s=10), clock=lambda: now[0])
    assert [restarts.allow() for _ in range(3)] == [True, True, False]
    now[0] = 10.5
    assert restarts.allow()


# --- the end ---------------------------------------------------------------------------------------


async def test_closing_waits_for_what_is_in_flight_and_refuses_what_is_new():
    client = await started()
    pid = client.host_pid
    stream = deltas_of(client, "m", request("r", max_tokens=300))
    seen = [await anext(stream)]
    closing = asyncio.create_task(client.close(drain_s=WITHIN_S))
    await asyncio.sleep(0)
    assert not client.alive
    with pytest.raises(Overloaded, match="shutting down"):
        await collect(client, "m", "late")
    seen += [delta async for delta in stream]
    assert tokens(seen) == list(range(1, 301))
    await closing
    assert client.state == "closed"
    assert wait_for_exit(pid)


async def test_what_does_not_end_in_time_is_told_of_the_shutdown():
    client = await started()
    task = asyncio.create_task(collect(client, "m", "r", NEVER_ENDS))
    while not client.num_in_flight:
        await asyncio.sleep(0)
    await client.close(drain_s=0.0)
    with pytest.raises(HostDied, match="shutting down"):
        await task


async def test_signals_of_a_terminal_do_not_reach_the_host(client):
    pid = client.host_pid
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert tokens(await collect(client, "a", "r", max_tokens=2)) == [1, 2]
    assert client.host_pid == pid
    assert os.getsid(pid) == pid


def test_the_host_does_not_outlive_a_parent_that_is_killed():
    program = (
        "import asyncio, os, sys\n"
        "from quire.host.client import Client\n"
        "from quire.config import ModelConfig\n"
        "async def main():\n"
        "    client = await Client.start([ModelConfig(model='m')], [], module='fake_host')\n"
        "    print(client.host_pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=WITHIN_S)
    assert wait_for_exit(int(done.stdout))


async def test_messages_to_a_process_that_is_gone_are_dropped():
    connection = Connection("no_such_module_to_run")
    heard = []
    await asyncio.wait_for(connection.listen(heard.append), WITHIN_S)
    assert connection.how_it_ended == "ended with status 1"
    connection.send(Ask(1))
    connection.close()
    assert heard == []


async def test_a_process_can_be_started_before_there_is_an_event_loop():
    def launch():  # in a thread, so that there is no loop to find
        client = Client([config("m", "a")], HostSettings(plugins=[], module="fake_host"))
        client.launch()
        return client, client.host_pid

    client, pid = await asyncio.to_thread(launch)
    await client.ready()
    try:
        assert client.host_pid == pid
        assert tokens(await collect(client, "a", "r", max_tokens=2)) == [1, 2]
    finally:
        await client.close()


async def test_a_host_that_says_what_nobody_can_read_is_replaced(client, caplog):
    pid = client.host_pid
    connection = client._supervisor._connection
    stream = deltas_of(client, "a", request("r", NEVER_ENDS))
    reading = asyncio.ensure_future(anext(stream))
    while not client.num_in_flight:
        await asyncio.sleep(0)
    connection.data_received(framed(b"\xc1"))
    with pytest.raises(HostDied, match="could not be followed"):
        await reading
    assert tokens(await collect(client, "a", "s", max_tokens=2)) == [1, 2]
    assert client.host_pid != pid
    assert "could not be followed" in caplog.text

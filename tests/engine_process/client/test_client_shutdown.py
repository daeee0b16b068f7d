"""Closing the client, and engine processes whose parent is gone."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from client_rig import WITHIN_S, collect, config, request, started, tokens, wait_for_exit
from delta_streams import deltas_of
from fake_engine_process import NEVER_ENDS

from quire.engine_process.client import EngineClient
from quire.engine_process.settings import EngineProcessSettings
from quire.engine_process.wire.connection import EngineConnection
from quire.engine_process.wire.protocol import GetStats
from quire.engine_process.wire.spawn import spawn
from quire.engine_process.wire.transport import encode_frame
from quire.errors import (
    EngineDied,
    Overloaded,
)

# --- the end ---------------------------------------------------------------------------------------


async def test_closing_waits_for_what_is_in_flight_and_refuses_what_is_new():
    client = await started()
    pid = client.engine_pid
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


async def test_requests_that_do_not_end_in_time_get_a_shutdown_error():
    client = await started()
    task = asyncio.create_task(collect(client, "m", "r", NEVER_ENDS))
    while not client.num_in_flight:
        await asyncio.sleep(0)
    await client.close(drain_s=0.0)
    with pytest.raises(EngineDied, match="shutting down"):
        await task


async def test_signals_of_a_terminal_do_not_reach_the_host(client):
    pid = client.engine_pid
    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    assert tokens(await collect(client, "a", "r", max_tokens=2)) == [1, 2]
    assert client.engine_pid == pid
    assert os.getsid(pid) == pid


def test_the_host_does_not_outlive_a_parent_that_is_killed():
    program = (
        "import asyncio, os, sys\n"
        "from quire.engine_process.client import EngineClient\n"
        "from quire.settings.model_config import ModelConfig\n"
        "async def main():\n"
        "    client = await EngineClient.start([ModelConfig(model='m')], [], module='fake_engine_process')\n"
        "    print(client.engine_pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True, timeout=WITHIN_S)
    assert wait_for_exit(int(done.stdout))


async def test_messages_to_a_process_that_is_gone_are_dropped():
    connection = EngineConnection(spawn("no_such_module_to_run"))
    heard = []
    await asyncio.wait_for(connection.listen(heard.append), WITHIN_S)
    assert connection.exit_description == "ended with status 1"
    connection.send(GetStats(1))
    connection.close()
    assert heard == []


async def test_a_process_can_be_started_before_there_is_an_event_loop():
    def launch():  # in a thread, so that there is no loop to find
        client = EngineClient([config("m", "a")], EngineProcessSettings(plugins=[], module="fake_engine_process"))
        client.launch()
        return client, client.engine_pid

    client, pid = await asyncio.to_thread(launch)
    await client.ready()
    try:
        assert client.engine_pid == pid
        assert tokens(await collect(client, "a", "r", max_tokens=2)) == [1, 2]
    finally:
        await client.close()


async def test_an_engine_process_that_sends_malformed_messages_is_replaced(client, caplog):
    pid = client.engine_pid
    connection = client._supervisor._connection
    stream = deltas_of(client, "a", request("r", NEVER_ENDS))
    reading = asyncio.ensure_future(anext(stream))
    while not client.num_in_flight:
        await asyncio.sleep(0)
    connection.data_received(encode_frame(b"\xc1"))
    with pytest.raises(EngineDied, match="engine process failed"):
        await reading
    assert tokens(await collect(client, "a", "s", max_tokens=2)) == [1, 2]
    assert client.engine_pid != pid
    assert "engine process failed" in caplog.text

"""A host process that goes on no more, or fails again and again: what clients get, and that it is replaced."""

import asyncio
import os
import signal

import pytest
from delta_streams import deltas_of
from fake_engine_process import NEVER_ENDS, RAISES
from paths import HELPERS

from quire.engine_process.client import EngineClient
from quire.engine_process.settings import EngineProcessSettings
from quire.errors import EngineDied, QuireError
from quire.params.sampling import SamplingParams
from quire.settings.model_config import ModelConfig
from quire.types import Prompt, Request


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", HELPERS)


async def started(**settings):
    return await EngineClient.start([ModelConfig(model="m")], [], module="fake_engine_process", **settings)


def stream(client, request_id, *token_ids):
    params = SamplingParams(max_tokens=2)
    return deltas_of(client, "m", Request(id=request_id, prompt=Prompt(token_ids=token_ids or (1,)), params=params))


async def collect(client, *args):
    return [delta async for delta in stream(client, *args)]


async def until(condition):
    while not condition():
        await asyncio.sleep(0)


async def test_a_frozen_engine_process_is_replaced_and_its_requests_end_with_an_error():
    client = await started(engine_timeout_s=0.4)
    try:
        frozen = client.engine_pid
        os.kill(frozen, signal.SIGSTOP)
        with pytest.raises(EngineDied, match=r"finished no step for 0\.4 s"):
            await collect(client, "r", NEVER_ENDS)
        assert "finished no step" in client.unavailable
        assert "being loaded" in client.unavailable
        assert len(await collect(client, "s")) == 2
        assert (client.engine_pid != frozen, client.unavailable) == (True, None)
    finally:
        await client.close()


async def test_while_a_host_is_frozen_new_requests_and_questions_get_an_error_and_then_all_goes_on():
    client = await started(engine_timeout_s=60)
    try:
        os.kill(client.engine_pid, signal.SIGSTOP)
        waiting = asyncio.create_task(collect(client, "r"))
        asked = asyncio.create_task(client.adapters.fetch())
        await until(lambda: client._calls._open and client.num_in_flight)
        watchdog = client._supervisor._watchdog
        await until(lambda: watchdog._waiting)
        watchdog.silent_s = 20.0  # as if it had been so long
        await until(lambda: client.unavailable is not None)
        assert "has not answered for 2" in client.unavailable
        with pytest.raises(EngineDied, match="has not answered"):
            await asked
        with pytest.raises(EngineDied, match="has not answered"):
            await collect(client, "new")
        os.kill(client.engine_pid, signal.SIGCONT)
        assert len(await waiting) == 2
        await until(lambda: client.unavailable is None)
    finally:
        await client.close()


async def test_a_host_that_is_busy_with_its_requests_is_left_alone():
    client = await started(engine_timeout_s=0.4)
    try:
        pid, watchdog = client.engine_pid, client._supervisor._watchdog
        waiting = asyncio.create_task(collect(client, "r", NEVER_ENDS))
        answers = []
        answered = watchdog.answered
        watchdog.answered = lambda: (answers.append(1), answered())
        await until(lambda: len(answers) == 5)
        assert (client.engine_pid, client.unavailable) == (pid, None)
        waiting.cancel()
    finally:
        await client.close()


async def test_a_frozen_host_is_not_waited_for_at_the_end(monkeypatch):
    client = await started()
    os.kill(client.engine_pid, signal.SIGSTOP)
    watchdog = client._supervisor._watchdog
    watchdog.frozen, watchdog.silent_s = True, 20.0
    monkeypatch.setattr("quire.engine_process.wire.connection.EngineConnection.wait", None)  # not called
    await client.close()
    assert client.state == "closed"


async def test_three_failed_steps_in_a_row_replace_the_host_with_the_reason():
    client = await started()
    try:
        first = client.engine_pid
        for request_id in "abc":
            with pytest.raises(QuireError, match="no room"):
                await collect(client, request_id, RAISES)
        await until(lambda: client.state == "restarting")
        assert "`m` failed 3 steps in a row" in client.unavailable
        assert len(await collect(client, "d")) == 2
        assert client.engine_pid != first
    finally:
        await client.close()


async def test_signals_do_not_end_a_host_at_any_time_of_its_life():
    client = EngineClient([ModelConfig(model="m")], EngineProcessSettings(plugins=[], module="fake_engine_process"))
    client.launch()
    pid = client.engine_pid
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
        os.kill(pid, number)  # its interpreter has hardly started
    await client.ready()
    try:
        os.kill(pid, signal.SIGHUP)
        assert len(await collect(client, "r")) == 2
        assert client.engine_pid == pid
    finally:
        await client.close()


async def test_a_client_learns_that_its_host_is_not_started_again():
    client = await started(max_restarts=0)
    try:
        os.kill(client.engine_pid, signal.SIGKILL)
        await client.failed()
        assert client.state == "failed"
        assert "killed by signal 9. It ended too often" in client.unavailable
    finally:
        await client.close()

"""The end of the server's process: orderly after the first signal, at once after the second, never without bound."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading

import httpx
import pytest
from fake_client import PretendClient, pretend_app
from live_server import live

from quire.records import Registry
from quire.server.jobs.active import UNFINISHED
from quire.server.process.shutdown import MIN_S, ServerShutdown, handle_signals, ignore_hangups, running_threads
from quire.settings.server_config import ServerConfig


class Left(BaseException):
    """The process has ended."""


@pytest.fixture
async def rig():
    """(ending, what it did): it bounds nothing, and leaving raises."""
    done = []

    def leave(status):
        done.append(status)
        raise Left

    ending = ServerShutdown(30.0, lambda: done.append("killed"), leave, arm=False)
    ending.stop = lambda: done.append("stop")
    return ending, done


async def test_the_first_signal_stops_in_good_order_and_the_second_leaves_at_once(rig, caplog):
    ending, done = rig
    ending.on_signal(signal.SIGTERM, None)
    await asyncio.sleep(0)
    assert (done, ending.status) == (["stop"], 0)
    with pytest.raises(Left):
        ending.on_signal(signal.SIGINT, None)
    assert done == ["stop", "killed", 128 + signal.SIGINT]
    assert "second signal (SIGINT)" in caplog.text


async def test_the_time_that_is_left_is_counted_from_the_beginning_of_the_end(rig, monkeypatch):
    ending, _ = rig
    now = [100.0]
    monkeypatch.setattr("quire.server.process.shutdown.time.monotonic", lambda: now[0])
    assert ending.left_s == 30
    ending.begin()
    now[0] += 20
    assert ending.left_s == 10
    now[0] += 20
    assert ending.left_s == MIN_S


async def test_only_the_first_reason_to_end_counts(rig):
    ending, done = rig
    ending.begin(1)
    ending.begin()
    assert (ending.status, done) == (1, ["stop"])


async def test_signal_handlers_are_installed_for_the_shutdown_and_restored(rig):
    ending, done = rig
    before = signal.getsignal(signal.SIGTERM)
    with handle_signals(ending):
        assert signal.getsignal(signal.SIGTERM) == ending.on_signal
    assert signal.getsignal(signal.SIGTERM) is before
    assert done == []


def test_a_hangup_is_logged_and_nothing_more(caplog):
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup would have it ignored
    try:
        with ignore_hangups(), caplog.at_level(logging.WARNING):
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "SIGHUP is ignored" in caplog.text


def test_a_hangup_that_was_ignored_before_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ignore_hangups():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_thread_that_keeps_the_process_is_named_with_where_it_is():
    ready, go_on = threading.Event(), threading.Event()

    def exporter_that_hangs():
        ready.set()
        go_on.wait()

    thread = threading.Thread(target=exporter_that_hangs, name="quire_7")
    thread.start()
    ready.wait()
    try:
        (line,) = [line for line in running_threads() if line.startswith("quire_7 ")]
        assert "wait (" in line
    finally:
        go_on.set()
        thread.join()


async def test_a_request_that_a_shutdown_cuts_off_gets_a_503_and_no_traceback_is_logged(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("quire.server.process.serve.GRACE_S", 0)
    loading = asyncio.Event()

    async def load(*_, **__):
        loading.set()
        await asyncio.Event().wait()

    (tmp_path / "adapter_config.json").write_text("{}")
    pretend = PretendClient()
    pretend.adapters.load = load
    registry = Registry(records={"quire_adapter_runtimes": {"x": None}})
    config = ServerConfig(port=0, log_level="warning", shutdown_timeout_s=0.0)
    app = pretend_app(tmp_path, pretend, config, registry)
    async with httpx.AsyncClient() as client:
        async with live(app, config) as (url, _):
            body = {"lora_name": "a", "lora_path": str(tmp_path)}
            asking = asyncio.create_task(client.post(f"{url}/v1/load_lora_adapter", json=body))
            await asyncio.wait({asking, asyncio.ensure_future(loading.wait())}, return_when=asyncio.FIRST_COMPLETED)
        answer = await asking
    assert (answer.status_code, answer.json()["error"]["message"]) == (503, UNFINISHED)
    assert "Traceback" not in caplog.text


LOCKED = """
import ctypes, sys
from quire.server.process.shutdown import _arm_timers
_arm_timers(0.0)
own = ctypes.pythonapi
own.PyThreadState_Get.restype = ctypes.c_void_p
own.PyEval_RestoreThread.argtypes = (ctypes.c_void_p,)
print("locked", flush=True)
own.PyEval_RestoreThread(own.PyThreadState_Get())  # waits for the lock that it has itself
"""


def test_a_process_whose_interpreter_lock_is_never_given_back_ends_and_says_where():
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "locked\n")
    assert "Timeout" in done.stderr

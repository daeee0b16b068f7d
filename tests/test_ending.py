"""The end of the server's process: orderly after the first signal, at once after the second, never without bound."""

import asyncio
import logging
import signal
import threading

import pytest

from quire.server.ending import LEAST_S, Ending, ended_by_signals, outliving_hangups, what_runs


class Left(BaseException):
    """The process has ended."""


@pytest.fixture
async def rig():
    """(ending, what it did): it bounds nothing, and leaving raises."""
    done = []

    def leave(status):
        done.append(status)
        raise Left

    ending = Ending(30.0, lambda: done.append("killed"), leave, arm=False)
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
    assert "SIGINT came again" in caplog.text


async def test_the_time_that_is_left_is_counted_from_the_beginning_of_the_end(rig, monkeypatch):
    ending, _ = rig
    now = [100.0]
    monkeypatch.setattr("quire.server.ending.time.monotonic", lambda: now[0])
    assert ending.left_s == 30
    ending.begin()
    now[0] += 20
    assert ending.left_s == 10
    now[0] += 20
    assert ending.left_s == LEAST_S


async def test_only_the_first_reason_to_end_counts(rig):
    ending, done = rig
    ending.begin(1)
    ending.begin()
    assert (ending.status, done) == (1, ["stop"])


async def test_signals_go_to_the_ending_and_back_to_whom_they_were_before(rig):
    ending, done = rig
    before = signal.getsignal(signal.SIGTERM)
    with ended_by_signals(ending):
        assert signal.getsignal(signal.SIGTERM) == ending.on_signal
    assert signal.getsignal(signal.SIGTERM) is before
    assert done == []


def test_a_hangup_is_logged_and_nothing_more(caplog):
    with outliving_hangups(), caplog.at_level(logging.WARNING):
        signal.raise_signal(signal.SIGHUP)
    assert "SIGHUP is ignored" in caplog.text


def test_a_hangup_that_was_ignored_before_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with outliving_hangups():
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
        (line,) = [line for line in what_runs() if line.startswith("quire_7 ")]
        assert "wait (" in line
    finally:
        go_on.set()
        thread.join()

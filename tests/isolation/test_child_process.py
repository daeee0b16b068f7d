"""A child process: replies, deadlines, its end, and files that it may send."""

import os
import time
from collections.abc import Iterator

import pytest

from quire.isolation.child_process import ChildProcess, bare_environment

ECHO = """
import socket, sys, time
from quire.isolation.child_process import frame, read_frame
connection = socket.socket(fileno=0)
while (body := read_frame(connection.makefile("rb", 0))) is not None:
    if body == b"sleep":
        time.sleep(60)
    if body == b"exit":
        sys.exit()
    if body == b"file":
        socket.send_fds(connection, [frame(body)], [connection.fileno()])
    else:
        connection.sendall(frame(body * 1000))
"""


@pytest.fixture(params=[False, True], ids=["without files", "with files"])
def child(request: pytest.FixtureRequest) -> Iterator[ChildProcess]:
    process = ChildProcess(["-c", ECHO], bare_environment(), receives_files=request.param)
    yield process
    process.end()


def test_replies_come_whole_and_files_only_where_they_are_expected(child: ChildProcess) -> None:
    assert child.ask(b"abc" * 1000, 60.0) == (b"abc" * 1_000_000, None)
    body, descriptor = child.ask(b"file", 60.0)
    assert body == b"file"
    assert (descriptor is not None) == bool(child._max_files)
    if descriptor is not None:
        os.close(descriptor)
    assert child.ask(b"", 60.0) == (b"", None)


def test_a_reply_that_takes_too_long_is_a_timeout(child: ChildProcess) -> None:
    assert child.ask(b"ready", 60.0)[1] is None
    assert not child.has_reply(0.0)
    begin = time.monotonic()
    with pytest.raises(TimeoutError):
        child.ask(b"sleep", 0.2)
    assert time.monotonic() - begin < 30


def test_the_end_of_the_process_is_the_end_of_its_replies(child: ChildProcess) -> None:
    with pytest.raises(EOFError):
        child.ask(b"exit", 60.0)
    assert child.has_reply(0.0), "which is its end"
    child.end()
    with pytest.raises(EOFError):
        child.has_reply(0.0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        child.ask(b"again", 60.0)


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="the system has no idle priority")
@pytest.mark.usefixtures("fresh_processes")
def test_a_process_may_have_idle_priority_from_its_start() -> None:
    policy = """
import os, socket
connection = socket.socket(fileno=0)
connection.recv(8)  # sent after the priority was set
connection.sendall(bytes([0] * 7 + [1, os.sched_getscheduler(0)]))
"""
    for at_idle_priority, wanted in ((True, os.SCHED_IDLE), (False, os.SCHED_OTHER)):
        child = ChildProcess(["-c", policy], bare_environment(), at_idle_priority=at_idle_priority)
        assert child.ask(b"", 60.0) == (bytes([wanted]), None)
        child.end()

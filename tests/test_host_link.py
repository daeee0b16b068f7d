"""The way between the two processes: messages as frames on a socket, read and written beside the step loop."""

import socket
import threading

import pytest
from hypothesis import given, strategies as st

from quire.host.faults import Fault
from quire.host.frames import Frames, framed
from quire.host.inbox import Inbox
from quire.host.link import Link
from quire.host.protocol import Abort, Ask, Failed, Unloaded, decode_from_host, encode

WITHIN_S = 60
"""Longest wait for another thread; reached only when something is broken."""


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 30)))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(messages, cuts):
    stream = b"".join(framed(message) for message in messages)
    frames, found = Frames(), []
    for size in cuts:
        found += [bytes(frame) for frame in frames.feed(stream[:size])]
        stream = stream[size:]
    found += [bytes(frame) for frame in frames.feed(stream)]
    assert found == messages


@pytest.fixture
def sockets():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def received(stream, count):
    frames, found = Frames(), []
    while len(found) < count:
        found += [decode_from_host(frame) for frame in frames.feed(stream.recv(1 << 16))]
    return found


def test_sending_never_waits_and_all_arrives_in_order_when_the_other_side_is_late(sockets):
    ours, theirs = sockets
    link = Link(ours)
    messages = [Failed(i, Fault("QuireError", "x" * 100_000)) for i in range(100)]  # far more than a socket holds
    for message in messages:
        link.send(message)
    assert received(theirs, len(messages)) == messages
    link.send(Unloaded(7))
    assert received(theirs, 1) == [Unloaded(7)]


def test_finishing_waits_until_all_was_taken(sockets):
    ours, theirs = sockets
    link = Link(ours)
    messages = [Failed(i, Fault("QuireError", "x" * 100_000)) for i in range(20)]
    for message in messages:
        link.send(message)
    found = []
    taking = threading.Thread(target=lambda: found.extend(received(theirs, len(messages))))
    taking.start()
    link.finish(WITHIN_S)
    ours.close()
    taking.join(WITHIN_S)
    assert found == messages


def test_sending_to_nobody_is_no_error(sockets):
    ours, theirs = sockets
    link = Link(ours)
    theirs.close()
    link.send(Unloaded(1))
    link.send(Unloaded(2))


def test_reading_ends_when_the_other_side_is_gone(sockets):
    ours, theirs = sockets
    theirs.sendall(framed(encode(Ask(1))) + framed(encode(Abort("m", "r"))))
    theirs.close()
    found = []
    Link(ours).read(found.append)
    assert found == [Ask(1), Abort("m", "r")]


def test_what_is_no_message_is_an_error(sockets):
    ours, theirs = sockets
    theirs.sendall(framed(b"\xc1"))
    with pytest.raises(Exception, match=r"msgpack|Invalid|malformed"):
        Link(ours).read(lambda _: None)


def test_an_inbox_gives_everything_in_order_and_waits_only_when_asked_to():
    inbox = Inbox()
    assert not [*inbox.take(0)]
    assert not [*inbox.take(0.001)]
    inbox.put(Ask(1))
    inbox.put(Ask(2))
    assert [*inbox.take(None)] == [Ask(1), Ask(2)]
    inbox.put(Ask(3))
    assert [*inbox.take(0)] == [Ask(3)]


def test_an_inbox_wakes_the_loop_that_waits_for_it():
    inbox, found = Inbox(), []
    waiting = threading.Thread(target=lambda: found.extend(inbox.take(None)))
    waiting.start()
    inbox.put(Ask(1))
    waiting.join(WITHIN_S)
    assert found == [Ask(1)]

"""The way between the two processes: messages as frames on a socket, read and written beside the step loop."""

import socket
import threading
from queue import SimpleQueue

import pytest
from hypothesis import given, strategies as st

from quire.engine_process.process import drain
from quire.engine_process.wire.error_info import ErrorInfo
from quire.engine_process.wire.protocol import Abort, CallFailed, GetStats, UnloadDone, decode_from_engine, encode
from quire.engine_process.wire.transport import FrameDecoder, Transport, encode_frame

WITHIN_S = 60
"""Longest wait for another thread; reached only when something is broken."""


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 30)))
def test_messages_come_out_as_they_went_in_however_the_stream_is_cut(messages, cuts):
    stream = b"".join(encode_frame(message) for message in messages)
    frames, found = FrameDecoder(), []
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
    frames, found = FrameDecoder(), []
    while len(found) < count:
        found += [decode_from_engine(frame) for frame in frames.feed(stream.recv(1 << 16))]
    return found


def test_sending_never_waits_and_all_arrives_in_order_when_the_other_side_is_late(sockets):
    ours, theirs = sockets
    link = Transport(ours)
    messages = [
        CallFailed(i, ErrorInfo("QuireError", "x" * 100_000)) for i in range(100)
    ]  # far more than a socket holds
    for message in messages:
        link.send(message)
    assert received(theirs, len(messages)) == messages
    link.send(UnloadDone(7))
    assert received(theirs, 1) == [UnloadDone(7)]


def test_finishing_waits_until_all_was_taken(sockets):
    ours, theirs = sockets
    link = Transport(ours)
    messages = [CallFailed(i, ErrorInfo("QuireError", "x" * 100_000)) for i in range(20)]
    for message in messages:
        link.send(message)
    found = []
    taking = threading.Thread(target=lambda: found.extend(received(theirs, len(messages))))
    taking.start()
    link.finish(WITHIN_S)
    ours.close()
    taking.join(WITHIN_S)
    assert found == messages


def test_sending_without_a_connection_is_no_error(sockets):
    ours, theirs = sockets
    link = Transport(ours)
    theirs.close()
    link.send(UnloadDone(1))
    link.send(UnloadDone(2))


def test_reading_ends_when_the_other_side_is_gone(sockets):
    ours, theirs = sockets
    theirs.sendall(encode_frame(encode(GetStats(1))) + encode_frame(encode(Abort("m", "r"))))
    theirs.close()
    found = []
    Transport(ours).read(found.append)
    assert found == [GetStats(1), Abort("m", "r")]


def test_what_is_no_message_is_an_error(sockets):
    ours, theirs = sockets
    theirs.sendall(encode_frame(b"\xc1"))
    with pytest.raises(Exception, match=r"msgpack|Invalid|malformed"):
        Transport(ours).read(lambda _: None)


def test_an_inbox_gives_everything_in_order_and_waits_only_when_asked_to():
    inbox = SimpleQueue()
    assert not [*drain(inbox, 0)]
    assert not [*drain(inbox, 0.001)]
    inbox.put(GetStats(1))
    inbox.put(GetStats(2))
    assert [*drain(inbox, None)] == [GetStats(1), GetStats(2)]
    inbox.put(GetStats(3))
    assert [*drain(inbox, 0)] == [GetStats(3)]


def test_an_inbox_wakes_the_loop_that_waits_for_it():
    inbox, found = SimpleQueue(), []
    waiting = threading.Thread(target=lambda: found.extend(drain(inbox, None)))
    waiting.start()
    inbox.put(GetStats(1))
    waiting.join(WITHIN_S)
    assert found == [GetStats(1)]

"""Publishes KV events over ZeroMQ, in the messages of vLLM, so that routers made for it know what is cached here.

PUB     (topic, sequence number in 8 bytes, msgpack of [time, events, number of the engine process])
ROUTER  request: (sequence number in 8 bytes); answers: the three parts of each message from this number on
        that is kept, and at the end (b"", -1, b"")
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from quire.plugin import ConfigError, KvEvent, KvEventContext, KvEventPublisher, hookimpl

FLAG = "--kv-events-config"

END = (-1).to_bytes(8, "big", signed=True)
"""Stands for a sequence number at the end of a replay."""

POLL_MS = 200
"""How soon the thread of replays notices that it is to end."""


@dataclass(frozen=True, kw_only=True)
class ZmqSettings:
    """Keys of the flag, as in vLLM. The number of the engine process is added to the ports.

    endpoint: bound if it has a wildcard, else connected to. replay_endpoint: None = no replays. buffer_steps: messages
    that can be replayed. hwm: messages that may wait for a slow subscriber, after which it misses some. topic: {model}
    in it stands for the name of the model.
    """

    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    topic: str = ""

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> ZmqSettings:
        """Raises ConfigError for a value of another type."""
        import msgspec

        try:
            found = msgspec.convert(given, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{FLAG}: {error}.") from error
        if found.buffer_steps < 1 or found.hwm < 1:
            raise ConfigError(f"`buffer_steps` and `hwm` of {FLAG} must be above 0.")
        return found


class ZmqPublisher:
    """Sends events from one thread, and replays them in another."""

    def __init__(self, context: KvEventContext) -> None:
        """Raises ConfigError if the address cannot be used, or pyzmq is missing."""
        import msgspec

        try:
            import zmq
        except ImportError as error:
            raise ConfigError(f"{FLAG} needs pyzmq: pip install 'quire-serve[zmq]'.") from error
        self._zmq, self._encode = zmq, msgspec.msgpack.encode
        self._settings, self._engine = ZmqSettings.from_mapping(context.settings), context.engine
        self._kept: deque[tuple[bytes, bytes, bytes]] = deque(maxlen=self._settings.buffer_steps)
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._number = 0
        self._context = zmq.Context()
        self._publishing = self._open(zmq.PUB, self._settings.endpoint)
        self._replaying: threading.Thread | None = None
        if self._settings.replay_endpoint is not None:
            router = self._open(zmq.ROUTER, self._settings.replay_endpoint)
            self._replaying = threading.Thread(target=self._replay, args=(router,), name="kv-replay", daemon=True)
            self._replaying.start()

    def _open(self, kind: int, endpoint: str) -> Any:
        address = shifted(endpoint, self._engine)
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.set_hwm(self._settings.hwm)
        binds = kind == self._zmq.ROUTER or "*" in address or "::" in address or not address.startswith("tcp:")
        try:
            (socket.bind if binds else socket.connect)(address)
        except self._zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ConfigError(f"{FLAG}: the address {address} cannot be used: {error}.") from error
        return socket

    def publish(self, model: str, events: Sequence[KvEvent]) -> None:
        topic = self._settings.topic.replace("{model}", model).encode()
        payload = self._encode([time.time(), [as_map(event) for event in events], self._engine])
        message = topic, self._number.to_bytes(8, "big"), payload
        self._number += 1
        self._publishing.send_multipart(message)
        with self._lock:
            self._kept.append(message)

    def close(self) -> None:
        self._closing.set()
        if self._replaying is not None:
            self._replaying.join()
        self._context.destroy(linger=0)

    def _replay(self, router: Any) -> None:
        """In a thread: answer requests for what was sent before."""
        while not self._closing.is_set():
            if not router.poll(POLL_MS):
                continue
            *route, request = router.recv_multipart()
            if len(request) != 8:
                continue
            first = int.from_bytes(request, "big")
            with self._lock:
                messages = [message for message in self._kept if int.from_bytes(message[1], "big") >= first]
            for message in (*messages, (b"", END, b"")):
                router.send_multipart([*route, *message])
        router.close()


def as_map(event: KvEvent) -> dict[str, Any]:
    """An event as vLLM encodes it: its class is the field `type`, and `extra_keys` is left out if there are none."""
    found = {"type": type(event).__name__, **{field.name: getattr(event, field.name) for field in fields(event)}}
    if found.get("extra_keys", ()) is None:
        del found["extra_keys"]
    return found


def shifted(endpoint: str, number: int) -> str:
    """The endpoint of the engine process of a number: TCP ports count up, other addresses get a suffix."""
    if not number:
        return endpoint
    address, separator, port = endpoint.rpartition(":")
    if endpoint.startswith("tcp:") and port.isdigit():
        return f"{address}{separator}{int(port) + number}"
    return f"{endpoint}_dp{number}"


@hookimpl
def quire_kv_event_publishers() -> Iterable[KvEventPublisher]:
    """The publisher of vLLM, under its name."""
    yield KvEventPublisher("zmq", ZmqPublisher, frozenset(field.name for field in fields(ZmqSettings)))

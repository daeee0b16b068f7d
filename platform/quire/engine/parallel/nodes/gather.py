"""What the first rank does to have the others join it."""

from __future__ import annotations

import secrets
import select
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.nodes.addresses import Address
from quire.engine.parallel.nodes.frames import GREETING_S, receive_frame, seconds_until, send_frame
from quire.engine.parallel.nodes.mesh import connected, keep_alive
from quire.engine.parallel.nodes.place import Place
from quire.errors import ConfigError

CHECK_S = 0.5
"""Interval of the checks whether a rank has ended before it has joined."""


@dataclass(frozen=True, eq=False)
class Gathered:
    """channels: to each other rank, for commands. connections: to the same, for sums."""

    channels: Mapping[int, Channel]
    connections: Mapping[int, socket.socket]


@dataclass(slots=True, eq=False)
class _Joining:
    """The ranks that have joined so far, and where they listen."""

    connections: dict[int, socket.socket] = field(default_factory=dict)
    addresses: dict[int, Address] = field(default_factory=dict)


def gather(place: Place, listener: socket.socket, problem: Callable[[], str | None] = lambda: None) -> Gathered:
    """Wait until all ranks have joined. problem: why one never will, None as far as is known.

    Raises ConfigError if they do not join, or one is not of this group.
    """
    deadline = time.monotonic() + place.timeout_s
    joining = _Joining()
    try:
        while len(joining.connections) < place.size - 1:
            if _is_waiting(listener, deadline):
                _take_one(place, listener, joining, deadline)
            elif (reason := problem()) is not None:
                raise ConfigError(reason)
        addresses = {0: listener.getsockname()[:2], **joining.addresses}
        token = secrets.token_hex(16)
        for connection in joining.connections.values():
            send_frame(connection, {"addresses": addresses, "token": token})
        connections = connected(0, listener, addresses, token, deadline)
    except OSError as error:
        _close(joining)
        missing = sorted(set(range(1, place.size)) - joining.connections.keys())
        late = f"rank {', '.join(map(str, missing))} has not joined" if missing else f"{error}"
        raise ConfigError(
            f"The {place.size} ranks of the model were not connected at {place.host}:{place.port} within "
            f"{place.timeout_s:g} s (--distributed-timeout-s): {late}."
        ) from error
    except BaseException:
        _close(joining)
        raise
    for connection in joining.connections.values():
        keep_alive(connection)
    return Gathered({rank: Channel(each) for rank, each in joining.connections.items()}, connections)


def _is_waiting(listener: socket.socket, deadline: float) -> bool:
    """Whether something has connected, or does so soon. Raises TimeoutError when the deadline is over."""
    return bool(select.select([listener], (), (), min(CHECK_S, seconds_until(deadline)))[0])


def _take_one(place: Place, listener: socket.socket, joining: _Joining, deadline: float) -> None:
    """Take the next connection. Raises ConfigError if it is of a rank that cannot be one of this group."""
    listener.settimeout(seconds_until(deadline))
    connection, peer = listener.accept()
    try:
        message = receive_frame(connection, min(deadline, time.monotonic() + GREETING_S))
        rank, (host, port) = int(message["rank"]), message["address"]
    except (OSError, ValueError, TypeError, KeyError):  # what is no rank of any group
        connection.close()
        return
    problem = _problem(place, rank, message, f"{peer[0]}")
    if problem is None and rank in joining.connections:
        if not _is_gone(joining.connections[rank]):
            problem = f"Rank {rank} has joined already, and another one at {peer[0]} has the same number."
        else:
            joining.connections[rank].close()
    if problem is not None:
        for each in (connection, *joining.connections.values()):
            _refuse(each, problem)
        raise ConfigError(problem)
    joining.connections[rank], joining.addresses[rank] = connection, (host, port)


def _problem(place: Place, rank: int, message: Mapping[str, Any], peer: str) -> str | None:
    own, size = version("quire-serve"), message.get("size")
    if message.get("version") != own:
        return f"Rank {rank} at {peer} has version {message.get('version')} of Quire, the first rank has {own}."
    if size != place.size:
        return f"Rank {rank} at {peer} was started as one of {size} ranks, the first rank as one of {place.size}."
    if not 0 < rank < place.size:
        return f"A rank at {peer} has the number {rank}, but it must be from 1 to {place.size - 1}."
    return None


def _is_gone(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(GREETING_S)


def _refuse(connection: socket.socket, problem: str) -> None:
    try:
        send_frame(connection, {"error": problem})
    except OSError:
        return  # it is gone
    finally:
        connection.close()


def _close(joining: _Joining) -> None:
    for connection in joining.connections.values():
        connection.close()

"""Connections between every two ranks, for the sums."""

from __future__ import annotations

import hmac
import socket
import time
from collections.abc import Mapping

from quire.engine.parallel.nodes.addresses import Address
from quire.engine.parallel.nodes.frames import GREETING_S, receive_frame, seconds_until, send_frame

KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 5))
"""A machine that is switched off ends its connections on the others within 15 s."""


def connected(
    rank: int, listener: socket.socket, addresses: Mapping[int, Address], token: str, deadline: float
) -> dict[int, socket.socket]:
    """The connections of one rank to all others. addresses: where each listens. token: of the group. Raises OSError."""
    found: dict[int, socket.socket] = {}
    try:
        for other in range(rank):
            found[other] = connect(addresses[other], deadline)
            send_frame(found[other], {"token": token, "rank": rank})
        while len(found) < len(addresses) - 1:
            listener.settimeout(seconds_until(deadline))
            connection, _ = listener.accept()
            other_rank = _rank_of(connection, token)
            if other_rank in found or not rank < other_rank < len(addresses):
                connection.close()
                continue
            found[other_rank] = connection
    except BaseException:
        for connection in found.values():
            connection.close()
        raise
    for connection in found.values():
        keep_alive(connection)
    return found


def connect(address: Address, deadline: float) -> socket.socket:
    """A connection to another rank. Raises OSError."""
    connection = socket.create_connection(address, min(GREETING_S, seconds_until(deadline)))
    if connection.getsockname() == connection.getpeername():  # TCP connects a port to itself if nothing listens there
        connection.close()
        raise ConnectionRefusedError("nothing listens there")
    return connection


def keep_alive(connection: socket.socket) -> None:
    """Wait on this connection without a limit from now on, unless the other machine is gone; and send at once."""
    connection.settimeout(None)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _rank_of(connection: socket.socket, token: str) -> int:
    """The rank that has connected; -1 if it is none of this group."""
    try:
        message = receive_frame(connection, time.monotonic() + GREETING_S)
    except (OSError, ValueError):
        return -1
    is_ours = hmac.compare_digest(str(message.get("token")), token)
    rank = message.get("rank")
    return rank if is_ours and isinstance(rank, int) else -1

"""How a rank other than the first joins the group."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.nodes.addresses import first_rank
from quire.engine.parallel.nodes.frames import receive_frame, send_frame
from quire.engine.parallel.nodes.mesh import connect, connected, keep_alive
from quire.engine.parallel.nodes.place import Place
from quire.errors import ConfigError

RETRY_S = 0.2
"""Pause between attempts."""


@dataclass(frozen=True, eq=False)
class Joined:
    """A rank of a group. channel: to the first rank. connections: to each other rank, for sums."""

    channel: Channel
    connections: Mapping[int, socket.socket]


def join(place: Place, rank: int) -> Joined:
    """Join the group of the first rank, which may not listen yet. Raises ConfigError if it refuses or is not found."""
    deadline = time.monotonic() + place.timeout_s
    while True:
        try:
            return _joined(place, rank, deadline)
        except ConfigError:
            raise
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            if time.monotonic() + RETRY_S > deadline:
                raise ConfigError(
                    f"Rank {rank} has found no first rank at {place.host}:{place.port} within {place.timeout_s:g} s "
                    f"(--distributed-timeout-s): {error}."
                ) from error
        time.sleep(RETRY_S)


def _joined(place: Place, rank: int, deadline: float) -> Joined:
    connection = connect(first_rank(place, deadline), deadline)
    try:
        own = connection.getsockname()[0]
        with socket.create_server((own, 0), family=connection.family) as listener:
            address = listener.getsockname()[:2]
            send_frame(
                connection,
                {"rank": rank, "size": place.size, "version": version("quire-serve"), "address": address},
            )
            answer = receive_frame(connection, deadline)
            if "error" in answer:
                raise ConfigError(str(answer["error"]))
            addresses = {int(of): (host, port) for of, (host, port) in answer["addresses"].items()}
            connections = connected(rank, listener, addresses, answer["token"], deadline)
    except BaseException:
        connection.close()
        raise
    keep_alive(connection)
    return Joined(Channel(connection), connections)

"""Which connections are open, and whether another may be: a bound on all, and on those of one address.

It knows no HTTP. One `Connections` lives as long as the server.
"""

from __future__ import annotations

import logging
import os
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from quire.server_config import ServerConfig

log = logging.getLogger("quire.server")

RESERVED_DESCRIPTORS = 32
"""File descriptors kept for what is no connection: adapters that are read, media that are fetched, pipes."""

LOG_EVERY_S = 60.0


class Connection(Protocol):
    """What can be closed to make room."""

    idle_since: float | None
    """When it began to wait for a request; None while it serves one."""

    address: str
    """Of the client."""

    def close_idle(self) -> None:
        """Close it: it waits for a request and gets no other."""
        ...


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Bounds on connections and on what one may take. Times in seconds; `max_per_address` 0 = any number.

    max_header_bytes: of one request, its line included. min_body_rate: bytes a second.
    """

    max_connections: int
    max_per_address: int
    max_header_bytes: int
    max_headers: int
    header_timeout_s: float
    body_timeout_s: float
    keep_alive_s: float
    min_body_rate: int = 1024

    @classmethod
    def of(cls, config: ServerConfig) -> ConnectionLimits:
        """As the settings say, with no more connections than the process has file descriptors for."""
        return cls(
            max_connections=_affordable(config.max_connections),
            max_per_address=config.max_connections_per_address,
            max_header_bytes=config.max_header_bytes,
            max_headers=config.max_headers,
            header_timeout_s=config.header_timeout_s,
            body_timeout_s=config.body_timeout_s,
            keep_alive_s=config.keep_alive_timeout_s,
        )


class Connections:
    """The open connections."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: set[Connection] = set()
        self._by_address: Counter[str] = Counter()
        self._logged_at: float | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection, now: float) -> str | None:
        """Take one in; if it must be refused, why. An idle connection is closed to make room where there is one."""
        most = self.limits.max_per_address
        if most and self._by_address[connection.address] >= most:
            return self._refused(f"This address has {most} connections open (--max-connections-per-address).", now)
        if len(self._open) >= self.limits.max_connections and not self._make_room():
            most = self.limits.max_connections
            return self._refused(f"The server has {most} connections open (--max-connections).", now)
        self._open.add(connection)
        self._by_address[connection.address] += 1
        return None

    def remove(self, connection: Connection) -> None:
        """It is closed, or is about to be. Harmless for one that was not taken in."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def _make_room(self) -> bool:
        """Close the connection that has waited longest, of the address that has most."""
        idle = [one for one in self._open if one.idle_since is not None]
        if not idle:
            return False
        chosen = max(idle, key=lambda one: (self._by_address[one.address], -(one.idle_since or 0.0)))
        self.remove(chosen)
        chosen.close_idle()
        return True

    def _refused(self, why: str, now: float) -> str:
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.warning("a connection was refused: %s (told at most once in %d s)", why, LOG_EVERY_S)
        return why


def _affordable(most: int) -> int:
    """`most`, or as many as there are file descriptors for (the soft limit is raised if it may be); logs if fewer."""
    used = len(os.listdir("/dev/fd")) + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < most + used:
        soft = most + used if hard == resource.RLIM_INFINITY else min(hard, most + used)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = most if soft == resource.RLIM_INFINITY else max(1, soft - used)
    if left < most:
        log.warning(
            "at most %d connections will be taken, fewer than --max-connections %d: the process may open %d files"
            " (ulimit -n)",
            left,
            most,
            soft,
        )
    return min(most, left)

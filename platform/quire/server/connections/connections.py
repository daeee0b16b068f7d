"""Counts open connections and limits them, in total and per address. One `Connections` lives as long as the server."""

from __future__ import annotations

import logging
import os
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from quire.settings.server_config import ServerConfig

log = logging.getLogger("quire.server")

RESERVED_DESCRIPTORS = 32
"""File descriptors kept free for adapter files, media downloads and pipes."""

LOG_EVERY_S = 60.0


class ClientConnection(Protocol):
    """A connection as `Connections` sees it."""

    idle_since: float | None
    """Time at which it began to wait for a request; None while it serves one."""

    address: str
    """The client's network address."""

    def close_idle(self) -> None:
        """Close it, although it is idle and the client may send another request."""
        ...


@dataclass(frozen=True, kw_only=True)
class ConnectionLimits:
    """Limits for connections. Times in seconds; `max_per_address` 0 means no limit.

    max_header_bytes: of one request, including the request line. min_body_rate: bytes per second. websocket_paths:
    where a connection may become a WebSocket. allowed_origins: of web pages that may open WebSockets, besides the
    server's own; "*" allows all.
    """

    max_connections: int
    max_per_address: int
    max_header_bytes: int
    max_headers: int
    header_timeout_s: float
    body_timeout_s: float
    keep_alive_s: float
    min_body_rate: int = 1024
    websocket_paths: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()

    @classmethod
    def from_config(cls, config: ServerConfig, websocket_paths: frozenset[str] = frozenset()) -> ConnectionLimits:
        """The limits of the settings, lowered to what the process has file descriptors for."""
        return cls(
            max_connections=_limit_by_descriptors(config.max_connections),
            max_per_address=config.max_connections_per_address,
            max_header_bytes=config.max_header_bytes,
            max_headers=config.max_headers,
            header_timeout_s=config.header_timeout_s,
            body_timeout_s=config.body_timeout_s,
            keep_alive_s=config.keep_alive_timeout_s,
            websocket_paths=websocket_paths,
            allowed_origins=frozenset(config.allowed_origins),
        )


class Connections:
    """The set of open connections, and its limits."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: set[ClientConnection] = set()
        self._by_address: Counter[str] = Counter()
        self._logged_at: float | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: ClientConnection, now: float) -> str | None:
        """Register a connection, or return the reason why it is rejected. When full, an idle connection is closed."""
        limit = self.limits.max_per_address
        if limit and self._by_address[connection.address] >= limit:
            return self._rejected(f"This address has {limit} connections open (--max-connections-per-address).", now)
        if len(self._open) >= self.limits.max_connections and not self._close_idle_one():
            limit = self.limits.max_connections
            return self._rejected(f"The server has {limit} connections open (--max-connections).", now)
        self._open.add(connection)
        self._by_address[connection.address] += 1
        return None

    def remove(self, connection: ClientConnection) -> None:
        """Unregister a connection; does nothing if it was not registered."""
        if connection not in self._open:
            return
        self._open.discard(connection)
        self._by_address[connection.address] -= 1
        if not self._by_address[connection.address]:
            del self._by_address[connection.address]

    def _close_idle_one(self) -> bool:
        """Close the longest idle connection of the address with the most connections; False if none is idle."""
        idle = [one for one in self._open if one.idle_since is not None]
        if not idle:
            return False
        chosen = max(idle, key=lambda one: (self._by_address[one.address], -(one.idle_since or 0.0)))
        self.remove(chosen)
        chosen.close_idle()
        return True

    def _rejected(self, reason: str, now: float) -> str:
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            log.warning("a connection was rejected: %s (logged at most once in %d s)", reason, LOG_EVERY_S)
        return reason


def _limit_by_descriptors(wanted: int) -> int:
    """`wanted`, or fewer if there are not enough file descriptors, which is logged. Raises the soft limit if it can."""
    used = len(os.listdir("/dev/fd")) + RESERVED_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + used:
        soft = wanted + used if hard == resource.RLIM_INFINITY else min(hard, wanted + used)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    left = wanted if soft == resource.RLIM_INFINITY else max(1, soft - used)
    if left < wanted:
        log.warning(
            "at most %d connections are accepted, fewer than --max-connections %d: the process may open %d files"
            " (ulimit -n)",
            left,
            wanted,
            soft,
        )
    return min(wanted, left)

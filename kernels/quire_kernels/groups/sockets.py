"""A group of ranks that exchange numbers through sockets, because they run on several machines."""

from __future__ import annotations

import mmap
import socket
import weakref
from collections.abc import Mapping
from ctypes import addressof

from quire_kernels.cpu.library import Library
from quire_kernels.groups.shared_memory import SharedMemoryGroup, shared_bytes
from quire_kernels.groups.structs import Peers


class SocketGroup(SharedMemoryGroup):
    """One rank of a group. connections: by the number of each other rank, used by nothing else, closed with the group.

    The slots are in memory of the rank's own, to which those of the other ranks are copied. One thread of each rank
    exchanges numbers.
    """

    slot_bytes = 1 << 18

    def __init__(
        self, library: Library, connections: Mapping[int, socket.socket], rank: int, size: int, timeout_s: float = 60.0
    ) -> None:
        memory = mmap.mmap(-1, shared_bytes(library, size, 1, self.slot_bytes))
        super().__init__(library, memory, rank, size, 1, timeout_s)
        self._peers = Peers()
        for of, connection in connections.items():
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._peers.sockets[of] = connection.fileno()
        self._member.peers = addressof(self._peers)
        weakref.finalize(self, _close, connections)


def _close(connections: Mapping[int, socket.socket]) -> None:
    for connection in connections.values():
        connection.close()

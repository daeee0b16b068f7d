"""A program in place of a rank: `python -m quire_testing.replicas.joining_program <host> <port> <rank> waits|ends`."""

from __future__ import annotations

import os
import socket
import sys

NAME = "QUIRE_CHECKED_EXECUTOR"
"""A variable whose value the program says."""

STATUS = 3


def follow(host: str, port: str, rank: str, way: str) -> int:
    """Say the rank, and wait until the connection ends; or end at once."""
    if way == "ends":
        return STATUS
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"{rank} {os.environ.get(NAME)}\n".encode())
        connection.recv(1)
    return 0


if __name__ == "__main__":
    sys.exit(follow(*sys.argv[1:]))

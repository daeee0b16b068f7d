"""Starts the program of an engine process, which imports what it needs until its first message arrives.

This module imports little: `platform serve` starts the process before it loads plugins and parses its flags.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from dataclasses import dataclass

from quire.isolation.module_process import start_module

MODULE = "quire.engine_process.process"
"""What the process runs."""

CLOSE_S = 2.0
"""Longest wait for a killed process to exit."""


@dataclass(frozen=True, eq=False)
class SpawnedProcess:
    """A process and this process's end of the socket to it. The socket has no name, so no other process can connect."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    def close(self) -> None:
        """Kill the process if it still runs, and close the socket."""
        self.end()
        self.socket.close()

    def end(self) -> None:
        """Kill the process if it still runs."""
        self.process.kill()
        try:
            self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:  # to free its memory takes the system longer
            threading.Thread(target=self.process.wait, name="engine-exit", daemon=True).start()


def spawn(module: str = MODULE) -> SpawnedProcess:
    """Start `module` as a process."""
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    with theirs:
        try:
            process = start_module(module, [str(number)], (number,))
        except BaseException:
            ours.close()
            raise
    return SpawnedProcess(process, ours)

"""Starts the program of an engine process, which imports what it needs until its first message arrives.

This module imports little: `platform serve` starts the process before it loads plugins and parses its flags.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass

MODULE = "quire.engine_process.process"
"""What the process runs."""

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the process ignores. They are blocked from its start until it has installed SIG_IGN."""

CLOSE_S = 2.0
"""Longest wait for a killed process to exit."""

OPENMP_ENV = {"GOMP_SPINCOUNT": "20000"}
"""Threads of torch's pool spin for some microseconds before they sleep. The default is milliseconds: as soon as
another process needs a core, each operation waits for a thread that is not running, and a step takes many times as
long. No spinning at all would cost more than a third of the speed of an idle machine."""


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
        # The child inherits the mask of this thread.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            # -P: nothing from the working directory may shadow a package.
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(number)],
                stdin=subprocess.DEVNULL,
                pass_fds=(number,),
                start_new_session=True,
                env=_environment(),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return SpawnedProcess(process, ours)


def _environment() -> dict[str, str]:
    """The environment of the engine process. A variable that the user has set wins."""
    return {**OPENMP_ENV, **os.environ}

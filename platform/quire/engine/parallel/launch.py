"""Starts ranks as processes of their own."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import dataclass, replace

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.messages import StartRank
from quire.isolation.process_state import is_stopped
from quire.records import Registry

MODULE = "quire.engine_process.ranks.process"
"""What the process runs."""

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the process ignores, blocked until it has installed SIG_IGN: the leader decides when it ends."""

ENVIRONMENT = {"GOMP_SPINCOUNT": "20000"}
"""As for the engine process: threads that wait spin for some microseconds only."""


CHECK_S = 0.5
"""Interval of the checks whether a process is stopped; the second in a row that finds it stopped kills it."""


@dataclass(frozen=True, eq=False)
class RankProcess:
    """A process and the connection to it."""

    process: subprocess.Popen[bytes]
    channel: Channel

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()


def launch_process(start: StartRank, memory: int, registry: Registry) -> RankProcess:
    """Start a rank, which loads the plugins of `registry` by their names. memory: a descriptor, which it gets too."""
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    with theirs:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE, str(number), str(memory)],
                stdin=subprocess.DEVNULL,
                pass_fds=(number, memory),
                start_new_session=True,
                env={**ENVIRONMENT, **os.environ},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    threading.Thread(target=kill_if_stopped, args=(process,), name="rank-state", daemon=True).start()
    found = RankProcess(process, Channel(ours))
    found.channel.send(
        replace(
            start,
            plugins=tuple(info.name for info in registry.plugins),
            options={plugin: dict(values) for plugin, values in registry.options.items()},
            sys_path=tuple(sys.path),
            log_level=logging.getLogger().getEffectiveLevel(),
        )
    )
    return found


def kill_if_stopped(process: subprocess.Popen[bytes]) -> None:
    """In a thread: kill a process that a signal has stopped. To the others it would look like a slow one for long."""
    was_stopped = False
    while True:
        try:
            process.wait(CHECK_S)
            return
        except subprocess.TimeoutExpired:
            stopped = is_stopped(process.pid)
        if stopped and was_stopped:
            process.kill()
        was_stopped = stopped

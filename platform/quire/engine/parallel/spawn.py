"""Starts the processes of ranks. This module imports little: a command that only follows needs no more."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict

from quire.engine.parallel.nodes.place import Place
from quire.isolation.module_process import start_module
from quire.isolation.process_state import is_stopped

JOINING_MODULE = "quire.engine_process.ranks.joined"
"""What the process of a rank runs that joins the first one through a network."""

CHECK_S = 0.5
"""Interval of the checks whether a process is stopped; the second in a row that finds it stopped kills it."""


def start_joining(place: Place, rank: int) -> subprocess.Popen[bytes]:
    """Start a process that joins the first rank of `place`, and ends with the thread that calls this."""
    return start_rank(JOINING_MODULE, [json.dumps(asdict(place)), str(rank)], ())


def start_rank(module: str, words: Sequence[str], files: Sequence[int]) -> subprocess.Popen[bytes]:
    """Run a module in a process that gets the descriptors `files`, and is killed if a signal stops it."""
    process = start_module(module, words, files)
    threading.Thread(target=kill_if_stopped, args=(process,), name="rank-state", daemon=True).start()
    return process


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

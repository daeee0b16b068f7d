"""Starts the processes of ranks. This module imports little: a command that only follows needs no more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict

from quire.engine.parallel.nodes.place import Place

JOINING_MODULE = "quire.engine_process.ranks.joined"
"""What the process of a rank runs that joins the first one through a network."""

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the process ignores, blocked until it has installed SIG_IGN: the leader decides when it ends."""

ENVIRONMENT = {"GOMP_SPINCOUNT": "20000"}
"""As for the engine process: threads that wait spin for some microseconds only."""


def start_joining(place: Place, rank: int) -> subprocess.Popen[bytes]:
    """Start a process that joins the first rank of `place`, and ends with the thread that calls this."""
    return start_module(JOINING_MODULE, [json.dumps(asdict(place)), str(rank)], ())


def start_module(module: str, words: Sequence[str], files: Sequence[int]) -> subprocess.Popen[bytes]:
    """Run a module in a process that gets the descriptors `files`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],
            stdin=subprocess.DEVNULL,
            pass_fds=files,
            start_new_session=True,
            env={**ENVIRONMENT, **os.environ},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""Starts a module of Quire as a process of its own session, whose end this process decides.

This module imports little: `platform serve` starts the engine process before it loads plugins and parses its flags.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that the module ignores. They are blocked from its start until it has installed SIG_IGN."""

OPENMP_ENV = {"GOMP_SPINCOUNT": "20000"}
"""Threads of torch's pool spin for some microseconds before they sleep. The default is milliseconds: as soon as
another process needs a core, each operation waits for a thread that is not running, and a step takes many times as
long. No spinning at all would cost more than a third of the speed of an idle machine. A variable that the user has set
wins."""


def start_module(module: str, words: Sequence[str], files: Sequence[int]) -> subprocess.Popen[bytes]:
    """Run `module` with the arguments `words` in a process that gets the descriptors `files`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)  # the child inherits the mask of this thread
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", module, *words],  # -P: nothing from the working directory shadows a package
            stdin=subprocess.DEVNULL,
            pass_fds=files,
            start_new_session=True,
            env={**OPENMP_ENV, **os.environ},
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_signals() -> None:
    """In the main thread of the module: ignore what `start_module` has blocked."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)

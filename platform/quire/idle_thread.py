"""Threads that run when nothing else does: work beside the steps must not take the cores of a step."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


def run_when_idle() -> None:
    """From now on the calling thread gets a core only when no other wants it. Only Linux has that for a thread.

    Threads that are merely nice still take a core from a step for milliseconds each time. Should a humble one be put
    off while it holds something that a step needs, the step waits for it, and so leaves it its core.
    """
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))

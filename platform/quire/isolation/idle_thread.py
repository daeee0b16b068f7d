"""Runs the calling thread at idle priority, for background work that must not take cores from a step."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


def run_when_idle() -> None:
    """Schedule the calling thread only on cores that no other thread wants. Only Linux can do this for a thread.

    `nice` is not enough: a niced thread still preempts a step for milliseconds. SCHED_IDLE cannot deadlock: if an
    idle-priority thread holds a lock that a step needs, the step blocks and the core becomes free for it.
    """
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))

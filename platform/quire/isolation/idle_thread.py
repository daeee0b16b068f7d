"""Threads of idle priority, and processes that they start, for background work that must not take cores from a step."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress


def run_when_idle(process: int | None = None) -> None:
    """Schedule the calling thread only on cores that no other thread wants. Only Linux can do this for a thread.

    process: id of a process that has just been started, instead of the calling thread.

    `nice` is not enough: a niced thread still preempts a step for milliseconds. SCHED_IDLE cannot deadlock: if an
    idle-priority thread holds a lock that a step needs, the step blocks and the core becomes free for it.
    """
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(process or threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))


_changes_threads = threading.Lock()


def compute_when_idle(share: float = 0.0) -> None:
    """Run the calling thread, which must be new, at idle priority, and torch's operations in it with few threads.

    share: see `compute_with`.
    """
    compute_with(share)
    run_when_idle()  # threads that torch starts for this one inherit the priority


def compute_with(share: float) -> None:
    """Give torch's operations in the calling thread a share of the threads that torch has elsewhere; at least one."""
    import torch

    with _changes_threads, ThreadPoolExecutor(1) as pool:
        others = pool.submit(torch.get_num_threads).result()  # the default, since that thread is new
        torch.get_num_threads()  # the first call in a thread sets the default
        torch.set_num_threads(max(1, int(share * others)))
        # That also is the default of threads that use torch for the first time later; one of those restores it.
        pool.submit(torch.set_num_threads, others).result()

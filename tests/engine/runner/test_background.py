"""Work in a background thread: it ends when it is asked to, and before the interpreter does."""

import os
import subprocess
import sys
from queue import SimpleQueue
from threading import Event

import pytest

from quire.isolation.background_work import BackgroundWork

UNCLOSED = """
from threading import Event
from quire.isolation.background_work import BackgroundWork

started = Event()

def work(stopping):
    started.set()
    stopping.wait()
    print("stopped", flush=True)

background = BackgroundWork(work)
started.wait()
"""


def test_stop_waits_for_the_work_and_may_be_called_twice() -> None:
    ended = []

    def work(stopping: Event) -> None:
        stopping.wait()
        ended.append(True)

    background = BackgroundWork(work)
    assert not background.stopping
    background.stop()
    background.stop()
    assert ended == [True]


def test_a_program_that_forgets_to_stop_it_ends_with_status_0_after_the_work() -> None:
    run = subprocess.run([sys.executable, "-c", UNCLOSED], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "stopped\n", "")


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has idle threads")
def test_the_work_runs_when_nothing_else_does() -> None:
    policies: SimpleQueue[int] = SimpleQueue()
    background = BackgroundWork(lambda stopping: policies.put(os.sched_getscheduler(0)))
    assert policies.get() == os.SCHED_IDLE
    background.stop()

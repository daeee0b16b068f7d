"""A thread of idle priority that ends before the interpreter does."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

from quire.isolation.idle_thread import run_when_idle


class BackgroundWork:
    """Runs `work(stopping)` in a daemon thread until it returns or `stop` is called.

    A daemon thread that is inside an extension module (Rust, C++) when the interpreter finalizes is unwound through
    foreign frames, which ends the process with SIGSEGV or SIGABRT. So `stop` also runs at exit, before that. `work`
    must check `stopping` often: `stop` waits for it.
    """

    def __init__(self, work: Callable[[Event], None]) -> None:
        self._stopping = Event()
        self._thread = Thread(target=self._run, args=(work,), daemon=True)
        atexit.register(self.stop)
        self._thread.start()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Make the thread end and wait for it. Further calls do nothing."""
        atexit.unregister(self.stop)
        self._stopping.set()
        with suppress(AttributeError, OSError):  # at idle priority it may get no core on a busy machine
            os.sched_setscheduler(self._thread.native_id or 0, os.SCHED_OTHER, os.sched_param(0))
        self._thread.join()

    def _run(self, work: Callable[[Event], None]) -> None:
        run_when_idle()
        if not self._stopping.is_set():
            work(self._stopping)

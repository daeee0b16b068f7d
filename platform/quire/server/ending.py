"""Ending: the end of the server's process, within a time, whatever hangs. It knows neither requests nor models.

The first SIGINT or SIGTERM ends the server in good order, the second at once. From the first on the clock runs. When it
has run out the process is ended as it is: by a thread, which says what still runs; a second later by one that needs no
interpreter lock (`faulthandler`), in case that is never given back; a second later by the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

log = logging.getLogger("quire.server")

GRACE_S = 6.0
"""How long after the timeout of a shutdown the process may still be there."""

LINGER_S = 2.0
"""How long threads may take to end when the server has."""

LEAST_S = 1.0
"""What each part of an orderly end is given, however little time is left."""

STDERR = 2


class Ending:
    """One end. `stop` is what the first signal calls, in the event loop; it may be set anew as the server starts."""

    def __init__(
        self, timeout_s: float, kill: Callable[[], None], leave: Callable[[int], None] = os._exit, arm: bool = True
    ) -> None:
        """timeout_s: for an end in good order. kill: ends child processes. leave: ends this one; arm: bound its end."""
        self._timeout_s, self._kill, self._leave, self._arm = timeout_s, kill, leave, arm
        self._loop = asyncio.get_running_loop()
        self._timer: threading.Timer | None = None
        self._begun_at: float | None = None
        self.stop: Callable[[], object] = lambda: None
        self.signal: int | None = None
        """The first that came."""
        self.status = 0
        """What the process ends with."""

    @property
    def left_s(self) -> float:
        """Seconds that are left for an end in good order; all of them as long as it has not begun."""
        spent_s = 0.0 if self._begun_at is None else time.monotonic() - self._begun_at
        return max(LEAST_S, self._timeout_s - spent_s)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Of SIGINT and SIGTERM. It may come between any two instructions, and so takes no lock."""
        if self.signal is not None:
            self._at_once(number)
            return
        self.signal = number
        if self._arm:
            _bound(self._timeout_s + GRACE_S)
        self._loop.call_soon_threadsafe(self.begin)

    def begin(self, status: int = 0) -> None:
        """End in good order, with this status. In the event loop; only the first call counts."""
        if self._begun_at is not None:
            return
        self._begun_at, self.status = time.monotonic(), status
        self._expire_in(self._timeout_s + GRACE_S, status or 1)
        self.stop()

    def finish(self) -> None:
        """Everything has ended but threads and what the interpreter does last: soon the process ends without them."""
        if self._begun_at is not None:
            self._expire_in(LINGER_S, self.status)

    def _expire_in(self, seconds: float, status: int) -> None:
        if not self._arm:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, self._expired, (status,))
        self._timer.daemon = True
        self._timer.start()
        _bound(seconds)

    def _expired(self, status: int) -> None:
        log.warning("the process ends without waiting any longer for: %s", "; ".join(what_runs()))
        self._end(status)

    def _at_once(self, number: int) -> None:
        log.warning("%s came again: the process ends at once", signal.Signals(number).name)
        self._end(128 + number)

    def _end(self, status: int) -> None:
        with contextlib.suppress(Exception):
            self._kill()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._leave(status)


def _bound(seconds: float) -> None:
    """End the process a second after so many, if need be without the interpreter lock."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.dump_traceback_later(seconds + 1, exit=True, file=STDERR)
    with contextlib.suppress(OSError, ValueError):  # signals are the main thread's
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 2)


def what_runs() -> list[str]:
    """Where the threads are that keep the process from ending: name, function, file and line of each.

    The main thread, which as a rule waits for the others, only if there is no other.
    """
    frames, main = sys._current_frames(), threading.main_thread()
    found = {}
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if frame is not None and not thread.daemon and not _is_idle(frame):
            code = frame.f_code
            found[thread] = f"{thread.name} in {code.co_name} ({code.co_filename}:{frame.f_lineno})"
    others = [line for thread, line in found.items() if thread is not main]
    return others or list(found.values())


def _is_idle(frame: FrameType) -> bool:
    """A worker of a pool that waits for work."""
    return frame.f_code.co_name == "_worker" and frame.f_code.co_filename.endswith("thread.py")


@contextlib.contextmanager
def ended_by_signals(ending: Ending) -> Iterator[None]:
    """Let SIGINT and SIGTERM be the affair of `ending`. Without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, ending.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if ending.signal is None:  # else a second one still ends the process at once
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def outliving_hangups() -> Iterator[None]:
    """Log SIGHUP instead of dying of it. Without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGHUP, _on_hangup)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _on_hangup(_number: int, _frame: FrameType | None) -> None:
    log.warning("SIGHUP is ignored: settings are read at the start only")

"""Shuts the server's process down within a time limit, whatever hangs.

The first SIGINT or SIGTERM starts a graceful shutdown and the time limit; the second ends the process at once. After
the limit, a thread logs what still runs and ends the process. One second later `faulthandler` ends it, which needs no
GIL, in case the GIL is never released; one second after that, the kernel does (SIGALRM).
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
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any

from quire.errors import QuireError

log = logging.getLogger("quire.server")

GRACE_S = 6.0
"""Time after `shutdown_timeout_s` until the process is ended by force."""

FLUSH_TIMEOUT_S = 2.0
"""How long threads may run on after the server has ended."""

MIN_S = 1.0
"""Minimum time for each part of a graceful shutdown, however little is left."""

STDERR = 2


class ServerShutdown:
    """One shutdown. `stop`, called on the event loop, begins it; it is replaced while the server starts."""

    def __init__(
        self,
        timeout_s: float,
        kill: Callable[[], None],
        exit_process: Callable[[int], None] = os._exit,
        arm: bool = True,
    ) -> None:
        """timeout_s: for a graceful shutdown. kill: kills child processes. arm: set the timers that end the process."""
        self._timeout_s, self._kill, self._exit, self._arm = timeout_s, kill, exit_process, arm
        self._loop = asyncio.get_running_loop()
        self._timer: threading.Timer | None = None
        self._begun_at: float | None = None
        self.stop: Callable[[], object] = lambda: None
        self.signal: int | None = None
        """The first signal received."""
        self.status = 0
        """Exit status of the process."""

    @property
    def left_s(self) -> float:
        """Seconds left for a graceful shutdown; the whole timeout if it has not begun."""
        spent_s = 0.0 if self._begun_at is None else time.monotonic() - self._begun_at
        return max(MIN_S, self._timeout_s - spent_s)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Handler of SIGINT and SIGTERM. It may run between any two instructions, so it takes no lock."""
        if self.signal is not None:
            self._exit_now(number)
            return
        self.signal = number
        if self._arm:
            _arm_timers(self._timeout_s + GRACE_S)
        self._loop.call_soon_threadsafe(self.begin)

    def begin(self, status: int = 0) -> None:
        """Begin a graceful shutdown on the event loop, with this exit status; further calls do nothing."""
        if self._begun_at is not None:
            return
        self._begun_at, self.status = time.monotonic(), status
        self._expire_in(self._timeout_s + GRACE_S, status or 1)
        self.stop()

    def finish(self) -> None:
        """Call when only threads are left: after `FLUSH_TIMEOUT_S` the process ends without waiting for them."""
        if self._begun_at is not None:
            self._expire_in(FLUSH_TIMEOUT_S, self.status)

    def _expire_in(self, seconds: float, status: int) -> None:
        if not self._arm:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, self._expired, (status,))
        self._timer.daemon = True
        self._timer.start()
        _arm_timers(seconds)

    def _expired(self, status: int) -> None:
        log.warning("the process ends without waiting for: %s", "; ".join(running_threads()))
        self._kill_and_exit(status)

    def _exit_now(self, number: int) -> None:
        log.warning("second signal (%s): the process ends at once", signal.Signals(number).name)
        self._kill_and_exit(128 + number)

    def _kill_and_exit(self, status: int) -> None:
        with contextlib.suppress(Exception):
            self._kill()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        self._exit(status)


def _arm_timers(seconds: float) -> None:
    """End the process by force: after `seconds` + 1 without the GIL, after `seconds` + 2 by a signal."""
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        faulthandler.dump_traceback_later(seconds + 1, exit=True, file=STDERR)
    with contextlib.suppress(OSError, ValueError):  # only the main thread may set signal handlers
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds + 2)


def running_threads() -> list[str]:
    """What the non-daemon threads are doing: name, function, file and line of each.

    The main thread, which usually waits for the others, is listed only if there is no other.
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
    """Whether the frame is of a pool thread without work."""
    return frame.f_code.co_name == "_worker" and frame.f_code.co_filename.endswith("thread.py")


@contextlib.contextmanager
def handle_signals(shutdown: ServerShutdown) -> Iterator[None]:
    """Send SIGINT and SIGTERM to `shutdown`. No effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, shutdown.on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        if shutdown.signal is None:  # otherwise a second one must still end the process at once
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def ignore_hangups() -> Iterator[None]:
    """Log SIGHUP instead of ending. No effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGHUP, _on_hangup)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _on_hangup(_number: int, _frame: FrameType | None) -> None:
    log.warning("SIGHUP is ignored: there is no file of settings to read again (--config), or the server is starting")


@contextlib.contextmanager
def reload_at_hangup(reload: Callable[[], Coroutine[Any, Any, object]] | None) -> Iterator[None]:
    """Run `reload` on the event loop at each SIGHUP.

    No effect where SIGHUP is ignored, as under nohup, and outside the main thread.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if reload is None or not is_main or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        yield
        return
    loop, running = asyncio.get_running_loop(), set[asyncio.Task[object]]()

    async def run() -> None:
        with contextlib.suppress(QuireError):  # it is in the log
            await reload()

    def begin() -> None:
        task: asyncio.Task[object] = loop.create_task(run())
        running.add(task)
        task.add_done_callback(running.discard)

    before = signal.signal(signal.SIGHUP, lambda number, frame: loop.call_soon_threadsafe(begin) and None)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)

"""Keeps an engine process running: starts it, and restarts it with the same models after it has ended.

A process whose step loop hangs is killed first (`quire.engine_process.watchdog`); it is not watched while it loads
models. Messages are forwarded to the callbacks; `on_exit` is called when the process ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from quire.engine_process.watchdog import Watchdog, WatchedProcess
from quire.engine_process.wire.connection import EngineConnection
from quire.engine_process.wire.error_info import from_error_info
from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.process_source import ProcessSource
from quire.engine_process.wire.protocol import (
    EngineFailed,
    FromEngine,
    Ping,
    Pong,
    Ready,
    Shutdown,
    Start,
    StepOutputs,
)
from quire.engine_process.wire.spawn import SpawnedProcess
from quire.errors import QuireError, StartupError
from quire.types import SeqDelta

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "restarting", "failed", "closed"]

FIRST_DELAY_S = 0.25
"""Pause before the second restart in a row; doubles with each further one."""

SHUTDOWN_TIMEOUT_S = 10.0
"""How long an engine process may take to exit after `Shutdown` before it is killed."""


@dataclass(frozen=True)
class RestartPolicy:
    """At most `max_restarts` restarts within `window_s`."""

    max_restarts: int = 5
    window_s: float = 600.0


class Restarts:
    """Counts restarts against a policy."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._clock = policy, clock
        self._times: deque[float] = deque()

    def allow(self) -> bool:
        """Whether the policy allows a restart now; if so, it is counted."""
        now = self._clock()
        while self._times and now - self._times[0] > self._policy.window_s:
            self._times.popleft()
        if len(self._times) >= self._policy.max_restarts:
            return False
        self._times.append(now)
        return True


class Supervisor:
    """Runs one engine process at a time. Callbacks run on the event loop."""

    def __init__(
        self,
        start: Callable[[], Start],
        on_deltas: Callable[[list[SeqDelta]], None],
        on_message: Callable[[FromEngine], None],
        on_exit: Callable[[str], None],
        on_frozen: Callable[[], None],
        policy: RestartPolicy,
        processes: ProcessSource,
        engine_timeout_s: float,
        frozen_after_s: float,
    ) -> None:
        """`start` makes the first message of each new process; `on_exit` gets a description of how the last one ended.

        on_deltas: gets the deltas of each step; on_message: gets all other messages. on_frozen: called when the process
        has not answered for `frozen_after_s` and does nothing. processes: where they come from. engine_timeout_s: the
        process is killed when a step takes longer.
        """
        self._processes, self._engine_timeout_s, self._frozen_after_s = processes, engine_timeout_s, frozen_after_s
        self._on_frozen = on_frozen
        self._start, self._on_deltas, self._on_message, self._on_exit = start, on_deltas, on_message, on_exit
        self._restarts = Restarts(policy)
        self._connection: EngineConnection | None = None
        self._pending: EngineConnection | None = None
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchdog: Watchdog | None = None
        self.state: State = "starting"
        self.last_end = ""
        """How the last process ended, as a sentence."""
        self.failed = asyncio.Event()
        """Set when the process has ended too often and is not restarted."""

    @property
    def pid(self) -> int | None:
        return None if self._connection is None else self._connection.pid

    @property
    def frozen_s(self) -> float:
        """Seconds for which the process has neither answered nor used the CPU; 0 if it is healthy."""
        return self._watchdog.silent_s if self._watchdog is not None and self._watchdog.frozen else 0.0

    def launch(self, spawned: SpawnedProcess | None = None) -> EngineConnection:
        """Have a process load the models, which a later `run` takes over. Needs no event loop.

        spawned: a process that was started before; None = start one.
        """
        connection = self._connection = self._pending = EngineConnection(spawned or self._processes.take())
        connection.send(self._start())
        return connection

    async def run(self) -> None:
        """Return when the models are loaded; raises the error of the engine process if they cannot be."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_running(outcome), name="engine-supervisor")
        try:
            await outcome
        except BaseException:
            await self.close()
            raise

    async def ready(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for the engine process to take requests; whether it does."""
        if self.state in ("failed", "closed"):
            return False
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except TimeoutError:
            return False
        return self.state == "ready"

    def send(self, message: WireMessage) -> None:
        """Send, or drop the message if no process runs. Raises BadRequest for a value that cannot be encoded."""
        if self._connection is not None:
            self._connection.send(message)

    def kill(self, reason: str | None = None) -> None:
        """Kill the process with SIGKILL. reason: how the process ended, as the end of a sentence."""
        if self._connection is not None:
            self._connection.kill(reason)

    async def close(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Ask the process to exit, and kill it after `timeout_s`, or at once if it is frozen."""
        self.state = "closed"
        if self._connection is not None and self._ready.is_set() and not self.frozen_s:
            self._connection.send(Shutdown())
            await self._connection.wait(min(timeout_s, SHUTDOWN_TIMEOUT_S))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop()
        self._processes.close()

    async def _keep_running(self, outcome: asyncio.Future[None]) -> None:
        """Run one process after another until closed or restarted too often."""
        delay_s = 0.0
        while True:
            try:
                error = await self._run_once(outcome)
            except Exception as unforeseen:  # a message that cannot be decoded; the next process may work
                log.exception("Reading from the engine process failed")
                error = StartupError(f"Reading from the engine process failed: {unforeseen}.")
            was_ready, started = self._ready.is_set(), outcome.done()
            self._ready.clear()
            if self.state == "closed":
                return
            if not started:
                outcome.set_exception(error)
                return
            self.state, self.last_end = "restarting", error.message
            self._on_exit(error.message)
            log.error("%s", error.message)
            delay_s = 0.0 if was_ready else max(FIRST_DELAY_S, 2 * delay_s)
            if not self._restarts.allow():
                self.state = "failed"
                self._ready.set()  # wakes requests that wait for the restart
                self.failed.set()
                log.error("the engine process ended too often and is not restarted")
                return
            log.warning("restarting the engine process")
            await asyncio.sleep(delay_s)

    async def _run_once(self, outcome: asyncio.Future[None]) -> QuireError:
        """Run one process until it ends; returns why it ended."""
        connection = self._pending
        if connection is None:
            self._drop()
            connection = self.launch()
        self._pending = None
        failures: list[QuireError] = []
        watching: list[asyncio.Task[None]] = []

        def on_message(message: FromEngine) -> None:
            if type(message) is StepOutputs:  # checked first, since it comes with every step
                self._on_deltas(message.deltas)
                return
            if isinstance(message, EngineFailed):
                failures.append(from_error_info(message.error))
                return
            if isinstance(message, Pong):
                if self._watchdog is not None:
                    self._watchdog.answered()
                return
            self._on_message(message)
            if isinstance(message, Ready):
                self._take_requests()
                watching.append(asyncio.create_task(self._watch(connection), name="engine-watchdog"))
                if not outcome.done():
                    outcome.set_result(None)

        try:
            await connection.listen(on_message)
        finally:
            for task in watching:
                task.cancel()
            self._watchdog = None
        return failures[0] if failures else StartupError(f"The engine process {connection.exit_description}.")

    def _take_requests(self) -> None:
        if self.state == "restarting":
            log.info("the engine process takes requests again")
        self.state = "ready"
        self._ready.set()
        self._processes.prepare()

    async def _watch(self, connection: EngineConnection) -> None:
        """Ping the process, and kill it when no answer comes for too long."""
        watchdog = self._watchdog = Watchdog(
            self._engine_timeout_s, WatchedProcess(connection.pid), frozen_after_s=self._frozen_after_s
        )
        while not watchdog.check():
            if watchdog.frozen:
                self._on_frozen()
            if watchdog.start_ping():
                connection.send(Ping())
            await asyncio.sleep(watchdog.interval_s)
        connection.kill(
            f"finished no step for {self._engine_timeout_s:g} s and was killed; if a step may take longer, raise "
            "--engine-timeout-s or lower --max-num-batched-tokens"
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

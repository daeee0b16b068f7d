"""Keeps a host process running: starts it, notices its end, starts it anew with what was loaded.

A host whose step loop goes on no more is killed first (`quire.host.watchdog`). While it loads models it is not watched.

It knows messages, but no requests: what the host says is handed on, and its death is told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from quire.errors import QuireError, StartupError
from quire.host.connection import Connection
from quire.host.faults import error_of
from quire.host.protocol import Deltas, Ending, FromHost, Message, Ping, Pong, Ready, Shutdown, Start
from quire.host.watchdog import Watchdog
from quire.types import Delta

log = logging.getLogger(__name__)

State = Literal["starting", "ready", "restarting", "failed", "closed"]

FIRST_DELAY_S = 0.25
"""Pause before a second attempt to restart; doubles with each."""

GOODBYE_S = 10.0
"""How long a host may take to end when told to, before it is killed."""


@dataclass(frozen=True)
class RestartPolicy:
    """At most `most` restarts within `window_s`."""

    most: int = 5
    window_s: float = 600.0


class Restarts:
    """Counts restarts against a policy."""

    def __init__(self, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._clock = policy, clock
        self._times: deque[float] = deque()

    def allow(self) -> bool:
        """Whether one more may be tried now; if so it is counted."""
        now = self._clock()
        while self._times and now - self._times[0] > self._policy.window_s:
            self._times.popleft()
        if len(self._times) >= self._policy.most:
            return False
        self._times.append(now)
        return True


class Supervisor:
    """One host process at a time. Callbacks run on the event loop."""

    def __init__(
        self,
        start: Callable[[], Start],
        on_deltas: Callable[[list[Delta]], None],
        on_message: Callable[[FromHost], None],
        on_death: Callable[[str], None],
        on_frozen: Callable[[], None],
        policy: RestartPolicy,
        module: str,
        engine_timeout_s: float,
    ) -> None:
        """`start` gives the first message of each new process; `on_death` gets how the last one ended.

        on_deltas: for what each step gives; on_message: for all else. on_frozen: called when the process has not
        answered for some time and computes nothing. module: what runs in the process. engine_timeout_s: how long it may
        go without finishing a step before it is killed.
        """
        self._module, self._engine_timeout_s = module, engine_timeout_s
        self._on_frozen = on_frozen
        self._start, self._on_deltas, self._on_message, self._on_death = start, on_deltas, on_message, on_death
        self._restarts = Restarts(policy)
        self._connection: Connection | None = None
        self._unheard: Connection | None = None
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchdog: Watchdog | None = None
        self.state: State = "starting"
        self.last_end = ""
        """How the last process ended, in words."""
        self.failed = asyncio.Event()
        """Set when the process has ended too often and is not started again."""

    @property
    def pid(self) -> int | None:
        """Number of the process now running."""
        return None if self._connection is None else self._connection.pid

    @property
    def frozen_s(self) -> float:
        """How long the process has answered nothing while it computed nothing; 0: it is well."""
        return self._watchdog.silent_s if self._watchdog is not None and self._watchdog.frozen else 0.0

    def launch(self) -> Connection:
        """Start a process; needs no event loop. Called before `run`, which then goes on with it, it saves time."""
        connection = self._connection = self._unheard = Connection(self._module)
        connection.send(self._start())
        return connection

    async def run(self) -> None:
        """Start, and return when the models are loaded; raises what kept them from it."""
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_running(outcome), name="host-supervisor")
        try:
            await outcome
        except BaseException:
            await self.close()
            raise

    async def ready(self, timeout_s: float) -> bool:
        """Whether the host takes requests, now or within `timeout_s`."""
        if self.state in ("failed", "closed"):
            return False
        try:
            await asyncio.wait_for(self._ready.wait(), timeout_s)
        except TimeoutError:
            return False
        return self.state == "ready"

    def send(self, message: Message) -> None:
        """Send to the host, if there is one; raises BadRequest for what cannot be encoded."""
        if self._connection is not None:
            self._connection.send(message)

    def kill(self) -> None:
        """End the process at once, whatever becomes of this one."""
        if self._connection is not None:
            self._connection.kill()

    async def close(self, goodbye_s: float = GOODBYE_S) -> None:
        """End the host: politely first, within `goodbye_s`, unless it is frozen."""
        self.state = "closed"
        if self._connection is not None and self._ready.is_set() and not self.frozen_s:
            self._connection.send(Shutdown())
            await self._connection.wait(min(goodbye_s, GOODBYE_S))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._drop()

    async def _keep_running(self, outcome: asyncio.Future[None]) -> None:
        """One process after another, until closed or restarted too often."""
        delay_s = 0.0
        while True:
            try:
                error = await self._one_life(outcome)
            except Exception as unforeseen:  # a message nobody can read; the next process may do better
                log.exception("The host process could not be followed")
                error = StartupError(f"The host process could not be followed: {unforeseen}")
            lived, started = self._ready.is_set(), outcome.done()
            self._ready.clear()
            if self.state == "closed":
                return
            if not started:
                outcome.set_exception(error)
                return
            self.state, self.last_end = "restarting", error.message
            self._on_death(error.message)
            log.error("%s", error.message)
            delay_s = 0.0 if lived else max(FIRST_DELAY_S, 2 * delay_s)
            if not self._restarts.allow():
                self.state = "failed"
                self._ready.set()  # requests need not wait any longer
                self.failed.set()
                log.error("The host process ended too often; it is not started again")
                return
            await asyncio.sleep(delay_s)

    async def _one_life(self, outcome: asyncio.Future[None]) -> QuireError:
        """Run one process to its end; why it ended."""
        connection = self._unheard
        if connection is None:
            self._drop()
            connection = self.launch()
        self._unheard = None
        failures: list[QuireError] = []
        watching: list[asyncio.Task[None]] = []

        def heard(message: FromHost) -> None:
            if type(message) is Deltas:  # first and directly, since it comes with every step
                self._on_deltas(message.deltas)
                return
            if isinstance(message, Ending):
                failures.append(error_of(message.fault))
                return
            if isinstance(message, Pong):
                if self._watchdog is not None:
                    self._watchdog.answered()
                return
            self._on_message(message)
            if isinstance(message, Ready):
                self.state = "ready"
                self._ready.set()
                watching.append(asyncio.create_task(self._watch(connection), name="host-watchdog"))
                if not outcome.done():
                    outcome.set_result(None)

        try:
            await connection.listen(heard)
        finally:
            for task in watching:
                task.cancel()
            self._watchdog = None
        return failures[0] if failures else StartupError(f"The host process {connection.how_it_ended}.")

    async def _watch(self, connection: Connection) -> None:
        """Ask for signs of life, and kill the process when they stay away for too long."""
        watchdog = self._watchdog = Watchdog(self._engine_timeout_s, lambda: connection.cpu_s)
        while not watchdog.look():
            if watchdog.frozen:
                self._on_frozen()
            if watchdog.ask():
                connection.send(Ping())
            await asyncio.sleep(watchdog.every_s)
        connection.kill(
            f"finished no step for {self._engine_timeout_s:g} s and was killed; if a step may take longer, raise "
            "--engine-timeout-s or lower --max-num-batched-tokens"
        )

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

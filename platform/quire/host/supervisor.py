"""Keeps a host process running: starts it, notices its end, starts it anew with what was loaded.

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
from quire.host.protocol import Deltas, FromHost, Message, Ready, Shutdown, Start, StartFailed, error_of
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
        policy: RestartPolicy,
        module: str,
    ) -> None:
        """`start` gives the first message of each new process; `on_death` gets how the last one ended.

        on_deltas: for what each step gives; on_message: for all else. module: what runs in the process.
        """
        self._module = module
        self._start, self._on_deltas, self._on_message, self._on_death = start, on_deltas, on_message, on_death
        self._restarts = Restarts(policy)
        self._connection: Connection | None = None
        self._unheard: Connection | None = None
        self._ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.state: State = "starting"

    @property
    def pid(self) -> int | None:
        """Number of the process now running."""
        return None if self._connection is None else self._connection.pid

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

    async def close(self) -> None:
        """End the host: politely first."""
        self.state = "closed"
        if self._connection is not None and self._ready.is_set():
            self._connection.send(Shutdown())
            await self._connection.wait(GOODBYE_S)
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
            self.state = "restarting"
            self._on_death(error.message)
            log.error("%s", error.message)
            delay_s = 0.0 if lived else max(FIRST_DELAY_S, 2 * delay_s)
            if not self._restarts.allow():
                self.state = "failed"
                self._ready.set()  # nobody need wait any longer
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

        def heard(message: FromHost) -> None:
            if type(message) is Deltas:  # first and directly, since it comes with every step
                self._on_deltas(message.deltas)
                return
            if isinstance(message, StartFailed):
                failures.append(error_of(message.fault))
                return
            self._on_message(message)
            if isinstance(message, Ready):
                self.state = "ready"
                self._ready.set()
                if not outcome.done():
                    outcome.set_result(None)

        await connection.listen(heard)
        return failures[0] if failures else StartupError(f"The host process {connection.how_it_ended}.")

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

"""The followers of one model: starts them, listens to them, notices when one is lost, and ends them."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from quire.engine.parallel.channel import Channel
from quire.engine.parallel.messages import RankReady
from quire.engine.parallel.stages.wires import Group
from quire_models.sharding.stage_flow import StageFlow

SILENCE_S = 5.0
"""A follower that shows no sign of life for so long, once it is ready, is ended."""

START_SILENCE_S = 120.0
"""The same while it imports and loads."""

CHECK_S = 0.5
"""Interval of the checks for signs of life."""

LATE_S = 2.0
"""If a check is so long after the one before, this process was frozen, maybe with its followers: they get new time."""


class Launched(Protocol):
    """A rank that was started."""

    @property
    def channel(self) -> Channel: ...

    def end(self) -> None:
        """End it at once, and wait until it is gone."""
        ...


class Started(NamedTuple):
    """All ranks of a model. group, flow: the leader's ends. followers: the other ranks by their numbers."""

    group: Group
    flow: StageFlow | None
    followers: Mapping[int, Launched]


class Followers:
    """start: starts them; called in a thread that lives as long as they do, because processes end with the thread that
    has started them, also if this process is killed. on_message: gets the rank and what it says, in a thread for each
    rank. on_lost: gets the reason.
    """

    def __init__(
        self,
        start: Callable[[], Mapping[int, Launched]],
        on_message: Callable[[int, Any], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._on_message, self._on_lost = on_message, on_lost
        self._all: Mapping[int, Launched] = {}
        self._heard: dict[int, float] = {}
        self._ready: set[int] = set()
        self._ending = threading.Event()
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(start, started), name="ranks", daemon=True)
        self._thread.start()
        started.result()

    def __iter__(self) -> Any:
        """The numbers of the ranks."""
        return iter(self._all)

    def __getitem__(self, rank: int) -> Launched:
        return self._all[rank]

    def send(self, command: Any) -> None:
        """Send a command to all; `on_lost` is called if one cannot get it."""
        body = pickle.dumps(command, pickle.HIGHEST_PROTOCOL)
        for rank, follower in self._all.items():
            try:
                follower.channel.send_body(body)
            except OSError as error:
                self._on_lost(f"rank {rank} does not take commands: {error}")

    def end(self) -> None:
        """Have all ended, without waiting for it."""
        self._ending.set()

    def close(self) -> None:
        """End all, and wait until they are gone."""
        self._ending.set()
        self._thread.join()

    def _run(self, start: Callable[[], Mapping[int, Launched]], started: Future[None]) -> None:
        try:
            self._all = start()
        except BaseException as error:
            started.set_exception(error)
            return
        self._heard = self._just_heard()
        for rank, follower in self._all.items():
            listen = threading.Thread(target=self._listen, args=(rank, follower.channel), name=f"rank-{rank}")
            listen.daemon = True
            listen.start()
        started.set_result(None)
        checked = time.monotonic()
        while not self._ending.wait(CHECK_S):
            began, checked = checked, time.monotonic()
            if checked - began > LATE_S:
                self._heard = self._just_heard()
            silent = self._silent()
            if silent is not None:
                self._on_lost(f"rank {silent} does not answer")
        for follower in self._all.values():
            follower.channel.close()
            follower.end()

    def _just_heard(self) -> dict[int, float]:
        return dict.fromkeys(self._all, time.monotonic())

    def _silent(self) -> int | None:
        now = time.monotonic()
        for rank, heard in self._heard.items():
            if now - heard > (SILENCE_S if rank in self._ready else START_SILENCE_S):
                return rank
        return None

    def _listen(self, rank: int, channel: Channel) -> None:
        while True:
            try:
                message = channel.receive()
            except EOFError:
                self._on_lost(f"rank {rank} has ended")
                return
            self._heard[rank] = time.monotonic()
            if isinstance(message, RankReady):
                self._ready.add(rank)
            self._on_message(rank, message)

"""Loads models when requests ask for them, and unloads them when they are idle or others need the memory.

One task at a time loads and unloads, in an order that `policy` decides. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from functools import partial

from quire.errors import NoMemory, NotFound, QuireError
from quire.server.http.errors import as_quire_error
from quire.server.residency.leases import Leases
from quire.server.residency.metrics import ResidencyMetrics
from quire.server.residency.policy import Resident, idle_too_long, models_to_evict, next_deadline, next_load
from quire.server.residency.registration import Registration
from quire.server.residency.registrations import Registrations
from quire.server.residency.room import Room
from quire.server.residency.waiting import Waiting
from quire.server.service.client_protocol import ClientProtocol
from quire.server.service.model_loads import ModelLoads
from quire.server.tenants.ticket import may_use_adapter, may_use_model
from quire.types import ModelInfo
from quire.types.model_info import bytes_in_words

log = logging.getLogger("quire.server")

POLL_S = 1.0
"""Time between two looks at the memory of the processes, and at models that wait for memory."""


class Residency:
    """The models in memory. registrations: all that requests may name. clock: returns seconds."""

    def __init__(
        self,
        registrations: Registrations,
        room: Room,
        loads: ModelLoads,
        client: ClientProtocol,
        waiting: Waiting,
        metrics: ResidencyMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registrations, self.room = registrations, room
        self._loads, self._client, self._waiting, self._metrics, self._clock = loads, client, waiting, metrics, clock
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def use(self, one: Registration | None, leases: Leases) -> None:
        """Have the model that `find` has returned in memory until the leases end.

        Waits for it to be loaded. Raises Overloaded if too many requests wait or this one has waited too long, and
        ModelNotLoaded with the reason of a load that has failed.
        """
        if one is None:
            return
        if not self.registrations.is_served(one):
            await self._wait(one)
        else:
            one.num_users += 1
        leases.add(partial(self._end, one))

    def must_wait(self, one: Registration | None) -> bool:
        """Whether a request for the model that `find` has returned waits for a load."""
        return one is not None and not self.registrations.is_served(one)

    def find(self, name: str | None, is_target: bool = False) -> Registration | None:
        """The registration of a model or of an adapter's model; None for any other name, which is left to what resolves
        it, and for a name that the sender of the current request may not use, unless it is the target of an alias.
        """
        if not name or not len(self.registrations):
            return None
        if (one := self.registrations.get(name)) is not None:
            return one if is_target or may_use_model(name) else None
        return self.registrations.of_adapter(name) if may_use_adapter(name) else None

    def add(self, one: Registration, info: ModelInfo) -> None:
        """Register a model that was loaded."""
        one.loaded(info, self._clock())
        self.registrations.add(one)
        self._wake_if_some_leave()

    def state_of(self, one: Registration) -> str:
        """ready, unloaded, loading, unloading or failed."""
        is_here = one.state == "unloading" or self.registrations.is_served(one)
        return one.state if is_here else one.state_of_unloaded

    def forget_adapter(self, name: str | None) -> bool:
        """Forget the adapter of a model that is not loaded; False if there is none of this name."""
        for one in self.registrations:
            if one.state == "unloaded" and any(info.name == name for info in one.adapters):
                one.adapters = tuple(info for info in one.adapters if info.name != name)
                return True
        return False

    async def _wait(self, one: Registration) -> None:
        """Return when the model is loaded, and counted as used."""
        failure = one.failure(self._clock())
        if failure is not None:
            raise failure
        if one.state == "ready":  # a new engine process could not load it
            one.state = "unloaded"
        if not one.waiters:
            one.since = self._clock()
        self.wake()
        try:
            await self._waiting.for_model(one)
        finally:
            self.wake()

    def _end(self, one: Registration) -> None:
        """A request has ended."""
        one.num_users -= 1
        one.last_used = self._clock()
        if not one.num_users and (self._waiting.count or one.config.keep_alive >= 0):
            self.wake()

    def _wake_if_some_leave(self) -> None:
        if self.room.comes_and_goes:
            self.wake()

    def wake(self) -> None:
        """Look again at what is to be loaded and unloaded."""
        self._changed.set()
        if self._task is None or self._task.done():
            # in no request's context: it goes on for others
            self._task = asyncio.create_task(self._run(), context=Context())

    async def stop(self) -> None:
        """End the loading task; requests that wait get the error of the shutdown."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- one thing at a time ------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                pause_s = await self._turn()
            except Exception:
                log.exception("loading and unloading models failed")
                pause_s = POLL_S
            with suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(pause_s) else pause_s):
                    await self._changed.wait()

    async def _turn(self) -> float:
        """Do what is to be done now; returns the seconds until the next look, infinite if nothing is due."""
        while True:
            residents, now = self.room.residents(), self._clock()
            if idle := idle_too_long(residents, now):
                await self._unload(idle, "idle")
                continue
            limit = self.room.limit()
            if too_much := models_to_evict(residents, limit, 0):
                await self._unload(too_much, "memory")
                continue
            load = next_load(self.room.wanted() + self._waiting.rooms(), residents, limit, now)
            if load is None:
                break
            if load.evicted:
                await self._unload(load.evicted, "memory", load.name)
            if not self._waiting.give_room(load.name, self.room.incoming):
                await self._load(load.name)
        self._refuse_what_never_fits(residents, limit)
        is_waiting = bool(self.room.wanted() or self._waiting.rooms())
        deadline_s = max(0.0, next_deadline(residents) - now)
        looks_often = is_waiting or self.room.has_budget or bool(self.room.in_flight() - self._used())
        return min(deadline_s, POLL_S) if looks_often else deadline_s

    def _used(self) -> set[str]:
        """The models whose requests say when they end."""
        return {one.name for one in self.registrations if one.num_users}

    def _refuse_what_never_fits(self, residents: Sequence[Resident], limit: float) -> None:
        """Answer requests for models that do not fit although all that may leave does; waiting would not help."""
        wanted = {one.name: one.num_bytes for one in self.room.wanted()}
        for name, size in wanted.items():
            known, one = self._client.memory_limit, self.registrations.get(name)
            if one is None or models_to_evict(residents, limit, size) is not None:
                continue
            if known and size > known:
                have = f"models may take {bytes_in_words(known)} together"
            elif not any(other.is_busy for other in residents):
                fixed = sum(other.num_bytes for other in residents if other.is_fixed)
                have = f"{bytes_in_words(max(0, int(limit) - fixed))} are left for it in the memory of the server"
            else:
                continue
            self._fail(one, NoMemory(f"It needs {bytes_in_words(size)}, and {have}."))

    async def _load(self, name: str) -> None:
        one = self.registrations.get(name)
        if one is None or not one.waiters:  # a client has removed it, or all have disconnected
            return
        began, one.state = self._clock(), "loading"
        log.info("loading the model %s, which %d requests wait for", name, len(one.waiters))
        try:
            served = await self._loads.load_config(one.config)
            await self._restore(one)
        except NoMemory as error:
            await self._make_more_room(one, error)
            return
        except Exception as error:
            self._fail(one, as_quire_error(error))
            return
        one.loaded(served.info, self._clock())
        seconds = self._clock() - began
        self._metrics.loaded(name, seconds)
        self.room.meter.forget()
        self._waiting.answer(one)
        log.info("the model %s came after %.1f s: %s", name, seconds, bytes_in_words(self.room.bytes_of(one)))
        if not self.registrations.has(one):  # a client has removed it meanwhile
            with suppress(QuireError):
                await self._loads.evict(name)

    async def _make_more_room(self, one: Registration, error: NoMemory) -> None:
        """The engine process has less memory than the account says: the model needs more than was free."""
        one.state = "unloaded"
        residents = self.room.residents()
        used = sum(other.num_bytes for other in residents)
        free = self.room.limit() - used
        if residents and math.isfinite(free):
            one.needs = int(free) + 1
        elif evicted := models_to_evict(residents, used - 1, 0):
            await self._unload(evicted, "memory", one.name)
        else:
            self._fail(one, error)

    async def _restore(self, one: Registration) -> None:
        """Bring the adapters back that the model had when it was unloaded."""
        kept, one.adapters = one.adapters, ()
        for info in kept:
            if info.state == "ready":
                self._client.register_adapter(info)
                continue
            try:
                await self._client.adapters.load(info, wait=True)
            except QuireError as error:
                log.warning("the adapter %s of %s could not be loaded: %s", info.name, one.name, error.message)

    def _fail(self, one: Registration, error: QuireError) -> None:
        if not self.registrations.has(one):  # a client has removed it; no request waits any more
            one.state = "unloaded"
            return
        one.failed(error, self._clock())
        self._metrics.failed(one.name)
        failure = one.failure(self._clock())
        assert failure is not None
        log.warning("%s", failure.message)
        self._waiting.refuse(one, failure)

    async def _unload(self, names: Sequence[str], reason: str, wanted: str = "") -> None:
        """Unload idle models. wanted: the model that is loaded next."""
        leaving = [one for name in names if (one := self.registrations.get(name)) is not None]
        for one in leaving:
            one.state = "unloading"  # before anything is awaited, so that no request begins to use one of them
        for one in leaving:
            size = self.room.bytes_of(one)
            one.adapters = tuple(
                info for info in self._client.adapters.all() if info.model == one.name and info.state != "failed"
            )
            try:
                await self._loads.evict(one.name)
            except NotFound:  # a client has unloaded it
                one.adapters = ()
            finally:
                one.state = "unloaded"
                self.room.meter.forget()
            why = f"idle for {one.config.keep_alive_s:g} s" if reason == "idle" else _why(wanted)
            self._metrics.evicted(one.name, reason)
            log.info("the model %s was unloaded, %s: %s are free", one.name, why, bytes_in_words(size))


def _why(wanted: str) -> str:
    return f"to make room for {wanted}" if wanted else "because the server takes more memory than its budget"

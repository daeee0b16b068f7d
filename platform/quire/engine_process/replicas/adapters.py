"""The adapters of all replicas, by name. One replica loads an adapter; then all know it, and read it when needed.

A replica gets messages in order: once a load is answered, no request that comes later can get the revision before it,
on any replica. The files must be those that were loaded; a replica that finds others refuses the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

from quire.engine_process.adapter_directory import AdapterDirectory
from quire.engine_process.client import EngineClient
from quire.errors import EngineDied, NotFound
from quire.routing.router import RequestRouter
from quire.types.adapter_info import AdapterInfo, AdapterTier

TIERS: Sequence[AdapterTier | None] = ("device", "host", "disk", None)
"""The fastest first."""


class ReplicatedAdapters:
    """Adapters that are ready, loading or failed, whatever the replica. For one event loop."""

    def __init__(self, clients: Sequence[EngineClient], router: RequestRouter) -> None:
        self._clients, self._router = clients, router
        self._loaded: dict[str, AdapterInfo] = {}
        """What every replica is to know."""
        self._owners: dict[str, EngineClient] = {}
        """The replica that has loaded a name, and loads it again: of two loads, the later one then wins."""
        self._turns = count()
        self._started: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def all(self) -> list[AdapterInfo]:
        """All adapters; tiers and counts are those of the time of loading."""
        found: dict[str, AdapterInfo] = {}
        for directory in self._directories():
            found |= {info.name: info for info in directory.all() if info.name not in self._loaded}
        return [*self._loaded.values(), *found.values()]

    def get(self, name: str) -> AdapterInfo | None:
        known = self._loaded.get(name)
        if known is not None:
            return known
        return next((info for directory in self._directories() if (info := directory.get(name)) is not None), None)

    async def settled(self, name: str) -> AdapterInfo | None:
        """The adapter of this name, ready or failed, as soon as its first load has ended; None if it is not known."""
        while (info := self.get(name)) is not None and info.state == "loading":
            await asyncio.gather(*(directory.settled(name) for directory in self._directories()))
        return info

    async def fetch(self) -> list[AdapterInfo]:
        """The current state on all replicas together: the fastest tier, and sums of requests."""
        answers = await asyncio.gather(
            *(client.adapters.fetch() for client in self._clients if client.alive), return_exceptions=True
        )
        lists = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not lists:
            raise EngineDied("No engine process is running; try again later.")
        merged: dict[tuple[str, str, str], AdapterInfo] = {}
        for info in (info for infos in lists for info in infos):
            key = info.model, info.name, info.state
            merged[key] = _together(merged[key], info) if key in merged else info
        return list(merged.values())

    async def load(self, adapter: AdapterInfo, *, replacing: bool = False, wait: bool = True) -> AdapterInfo:
        """Load an adapter on one replica; raises what `AdapterDirectory.load` raises."""
        owner = self._owners.get(adapter.name)
        if owner is None or not owner.alive:
            owner = self._owners[adapter.name] = self._next_client(adapter.model)
        try:
            return await owner.adapters.load(adapter, replacing=replacing, wait=wait)
        finally:
            if self.get(adapter.name) is None:
                self._owners.pop(adapter.name, None)

    async def unload(self, name: str) -> None:
        """Refuse an adapter to new requests, and unload it on all replicas. Raises NotFound."""
        info = self.get(name)
        if info is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", "lora_name")
        self._loaded.pop(name, None)
        self._owners.pop(name, None)
        self._router.adapter_unloaded(info.model, name)
        await asyncio.gather(*(self._unload(client, name) for client in self._clients))

    async def _unload(self, client: EngineClient, name: str) -> None:
        if not client.alive:  # it learns of this when it is ready
            client.adapters.forget(name)
            return
        with suppress(NotFound, EngineDied):
            await client.adapters.unload(name)

    def forget_model(self, model: str) -> None:
        """Drop the adapters of a model that was unloaded."""
        for name in [name for name, info in self._loaded.items() if info.model == model]:
            del self._loaded[name]
            self._owners.pop(name, None)

    def on_ready(self, replica: int) -> None:
        """A replica has started: make its adapters those of the others."""
        client = self._clients[replica]
        for info in client.adapters.all():
            if info.state == "ready" and info.name not in self._loaded:
                if replica in self._started:  # it was unloaded while the replica loaded it
                    self._start(self._unload(client, info.name))
                else:
                    self.on_loaded(replica, info)
        self._started.add(replica)
        for name, info in self._loaded.items():
            known = client.adapters.get(name)
            if known is None or (known.path, known.fingerprint) != (info.path, info.fingerprint):
                client.register_adapter(info)

    def on_loaded(self, replica: int, info: AdapterInfo) -> None:
        """A replica has loaded an adapter because a client asked for it: the others are to know it."""
        self._loaded.pop(info.name, None)
        self._loaded[info.name] = info
        self._owners.setdefault(info.name, self._clients[replica])
        self._router.adapter_loaded(info.model, info.name, replica)
        for other, client in enumerate(self._clients):
            if other != replica:
                client.register_adapter(info)

    def _next_client(self, model: str) -> EngineClient:
        clients = [client for client in self._clients if client.alive and model in client.served.infos]
        return (clients or self._clients)[next(self._turns) % len(clients or self._clients)]

    def _directories(self) -> list[AdapterDirectory]:
        return [client.adapters for client in self._clients]

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _together(first: AdapterInfo, second: AdapterInfo) -> AdapterInfo:
    """One adapter from what two replicas say of it."""
    fastest = min(first, second, key=lambda info: TIERS.index(info.tier))
    return replace(
        fastest,
        error=first.error or second.error,
        num_requests=first.num_requests + second.num_requests,
        num_requests_total=first.num_requests_total + second.num_requests_total,
    )

"""The adapters of one replica, kept equal to those that the cluster remembers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from quire.errors import QuireError
from quire.ray.calls import WholeAnswer
from quire.ray.stored_adapters import StoredAdapter, StoredAdapters
from quire.server.schemas.adapters import LoadAdapterRequest

log = logging.getLogger("quire.server")

FOLLOW_S = 2.0
"""How often a replica compares its adapters with the stored ones: it may have missed a change while it started."""

OK = 200
TEXT = ((b"content-type", b"text/plain; charset=utf-8"),)


class SharedAdapters:
    """service: the `AdapterService` of the replica. Adapters of settings and of plugins are left alone."""

    def __init__(self, service: Any, stored: StoredAdapters) -> None:
        self._service, self._stored = service, stored
        self._numbers: dict[str, int] = {}
        self._changing = asyncio.Lock()

    async def load(self, adapter: StoredAdapter, ask: Callable[[], Awaitable[WholeAnswer]]) -> WholeAnswer:
        """The answer to the request that loads an adapter. ask: has the application answer it."""
        async with self._changing:
            if self._numbers.get(adapter.name) == adapter.number:  # it was found in the store meanwhile
                return WholeAnswer(OK, TEXT, f"Success: LoRA adapter '{adapter.name}' added successfully.".encode(), "")
            answer = await ask()
            if answer.status == OK:
                self._numbers[adapter.name] = adapter.number
            return answer

    async def unload(self, name: str, ask: Callable[[], Awaitable[WholeAnswer]]) -> WholeAnswer:
        """The answer to the request that unloads one."""
        async with self._changing:
            self._numbers.pop(name, None)
            return await ask()

    async def follow(self) -> None:
        """Load and unload what was loaded and unloaded elsewhere; what cannot be loaded is not tried again."""
        async with self._changing:
            stored = await asyncio.to_thread(self._stored.all)
            for name in self._numbers.keys() - stored.keys():
                del self._numbers[name]
                await self._try(name, self._service.unload(name))
            for name, adapter in stored.items():
                if self._numbers.get(name) != adapter.number:
                    self._numbers[name] = adapter.number
                    await self._try(name, self._service.load(LoadAdapterRequest(**adapter.fields)))

    async def keep_following(self) -> None:
        """Do so until cancelled."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self.follow()
            except Exception as error:  # the store of the cluster does not answer
                log.warning("The adapters of other replicas are not known: %s", error)

    async def _try(self, name: str, change: Awaitable[Any]) -> None:
        try:
            await change
        except QuireError as error:
            log.error("The adapter %s is not what it is on other replicas: %s", name, error.message)

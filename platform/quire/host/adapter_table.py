"""AdapterTable: the adapters of all models as the API process knows them, by name; loading and unloading them.

A name belongs to one adapter of one model. The table outlives the host: a new one is told what is in it. Everything
runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from quire.adapter_info import AdapterInfo
from quire.errors import BadRequest, NotFound
from quire.host.protocol import AdapterChanged, AdapterLoaded, Adapters, AskAdapters, LoadAdapter, UnloadAdapter

Call = Callable[[Callable[[int], Any]], Awaitable[Any]]


class AdapterTable:
    """`call` sends the message that it makes of a call number, when the host is there, and gives the answer."""

    def __init__(self, call: Call, first: Sequence[AdapterInfo] = ()) -> None:
        """first: adapters that the first host must load."""
        self._call = call
        self._first = list(first)
        self._infos: dict[str, AdapterInfo] = {}
        self._loading: set[asyncio.Task[AdapterInfo]] = set()
        self._leaving: Counter[str] = Counter()  # how many unloads the host has not heard of

    def __len__(self) -> int:
        return len(self._infos)

    def all(self) -> list[AdapterInfo]:
        """Those that are ready, loading or failed, in order of loading; tiers and counts are those of then."""
        return list(self._infos.values())

    def get(self, name: str) -> AdapterInfo | None:
        """The adapter that requests mean by a name."""
        return self._infos.get(name)

    async def load(self, adapter: AdapterInfo, *, replacing: bool = False, wait: bool = True) -> AdapterInfo:
        """Load an adapter from `adapter.path` for `adapter.model`. Goes on when whoever waits gives up.

        replacing: its name may be in use. wait: return when requests can be answered. Raises BadRequest (the name is
        in use, it cannot be run), PluginFailed, and what the host's end raises.
        """
        before = self._infos.get(adapter.name)
        if before is not None and before.state != "failed" and before.model != adapter.model:
            raise BadRequest(
                f"The lora adapter '{adapter.name}' has already been loaded for the model `{before.model}`.",
                "lora_name",
            )
        task = asyncio.ensure_future(self._load(adapter, before, replacing, wait))
        self._loading.add(task)
        task.add_done_callback(self._loading.discard)
        return await asyncio.shield(task)

    async def _load(self, adapter: AdapterInfo, before: AdapterInfo | None, replacing: bool, wait: bool) -> AdapterInfo:
        if before is None or before.state == "failed":
            self._infos[adapter.name] = adapter
        try:
            answer: AdapterLoaded = await self._call(
                lambda number: LoadAdapter(call=number, adapter=adapter, replacing=replacing, wait=wait)
            )
        except BaseException:
            if self._infos.get(adapter.name) is adapter:
                del self._infos[adapter.name]
            raise
        return answer.info

    async def unload(self, name: str) -> None:
        """Let no request name an adapter any more. Raises NotFound."""
        info = self._infos.pop(name, None)
        if info is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", "lora_name")
        await asyncio.shield(asyncio.ensure_future(self._unload(info)))

    async def _unload(self, info: AdapterInfo) -> None:
        self._leaving[info.name] += 1
        try:
            await self._call(lambda number: UnloadAdapter(number, info.model, info.name))
        except BaseException:
            self._has_left(info.name)
            raise

    def _has_left(self, name: str) -> None:
        self._leaving[name] -= 1
        if self._leaving[name] <= 0:
            del self._leaving[name]

    async def look(self) -> list[AdapterInfo]:
        """All that the host knows now: tiers, counts, retired ones too."""
        answer: Adapters = await self._call(AskAdapters)
        return answer.infos

    # --- what the host says ------------------------------------------------------------------------

    def restarted(self) -> tuple[list[AdapterInfo], list[AdapterInfo]]:
        """What the next host must load, and what it need only know."""
        return list(self._first), [info for info in self._infos.values() if info.state != "failed"]

    def ready(self, infos: Sequence[AdapterInfo]) -> None:
        """A host has started with these."""
        self._first.clear()
        self._leaving.clear()
        self._infos = {info.name: info for info in infos}

    def heard(self, message: AdapterLoaded | AdapterChanged) -> None:
        """Something has become of an adapter; retired: the host has heard that it is to be unloaded."""
        info, before = message.info, self._infos.get(message.info.name)
        if info.state == "retired":
            self._has_left(info.name)
            return
        if info.name in self._leaving:
            return  # it was sent before the host heard of the end
        settled = before is not None and before.state == "ready"
        if info.state == "ready" and not (settled and before and before.revision > info.revision):
            self._infos.pop(info.name, None)
            self._infos[info.name] = info
        elif info.state == "failed" and before is not None and not settled:
            self._infos[info.name] = info

    def forget_model(self, model: str) -> None:
        """A model was unloaded, and its adapters with it."""
        self._infos = {name: info for name, info in self._infos.items() if info.model != model}

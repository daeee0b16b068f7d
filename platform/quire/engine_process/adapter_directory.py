"""The API process's directory of the adapters of all models, by name, and calls to load and unload them.

A name belongs to one adapter of one model. The directory outlives the engine process: a new one loads its contents.
Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from quire.engine_process.settings import OnAdapterLoaded
from quire.engine_process.wire.adapter_changes import (
    AdapterChanged,
    AdapterListReply,
    AdapterLoaded,
    ListAdapters,
    LoadAdapter,
    UnloadAdapter,
)
from quire.errors import BadRequest, NotFound
from quire.types.adapter_info import AdapterInfo

Call = Callable[[Callable[[int], Any]], Awaitable[Any]]
"""Waits for the engine process, sends it the message that the argument builds from a call id; returns the answer."""


class AdapterDirectory:
    """Adapters that are ready, loading or failed. `first`: adapters that the first engine process must load."""

    def __init__(
        self, call: Call, first: Sequence[AdapterInfo] = (), on_loaded: OnAdapterLoaded = lambda info: None
    ) -> None:
        self._call, self._on_loaded = call, on_loaded
        self._first = list(first)
        self._infos: dict[str, AdapterInfo] = {}
        self._loading: set[asyncio.Task[AdapterInfo]] = set()
        self._unloading: Counter[str] = Counter()
        """How many unloads of a name the engine process has not confirmed."""
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._infos)

    def all(self) -> list[AdapterInfo]:
        """All adapters, in the order of loading. Tiers and counts are those of that time; `fetch` has current ones."""
        return list(self._infos.values())

    def get(self, name: str) -> AdapterInfo | None:
        return self._infos.get(name)

    async def settled(self, name: str) -> AdapterInfo | None:
        """The adapter of this name, ready or failed, as soon as its first load has ended; None if it is not known."""
        while (info := self._infos.get(name)) is not None and info.state == "loading":
            await self._changed.wait()
        return info

    def set(self, info: AdapterInfo) -> None:
        """Enter an adapter as the latest, in place of one of the same name."""
        self._infos.pop(info.name, None)
        self._infos[info.name] = info
        self._notify_waiting()

    def forget(self, name: str) -> None:
        """Drop an adapter that the engine process, which does not run, need not load again."""
        self._infos.pop(name, None)
        self._notify_waiting()

    async def load(self, adapter: AdapterInfo, *, replacing: bool = False, wait: bool = True) -> AdapterInfo:
        """Load an adapter from `adapter.path` for `adapter.model`. Continues if the caller is canceled.

        replacing: the name may be in use already. wait: return when the adapter can run requests, not before. Raises
        BadRequest (the name is in use, or the adapter cannot be run), PluginFailed, EngineDied, and errors of the load.
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
                lambda call_id: LoadAdapter(call_id=call_id, adapter=adapter, replacing=replacing, wait=wait)
            )
        except BaseException:
            if self._infos.get(adapter.name) is adapter:
                del self._infos[adapter.name]
                self._notify_waiting()
            raise
        return answer.info

    async def unload(self, name: str) -> None:
        """Refuse an adapter to new requests and unload it. Raises NotFound."""
        info = self._infos.pop(name, None)
        if info is None:
            raise NotFound(f"The lora adapter '{name}' cannot be found.", "lora_name")
        self._notify_waiting()
        await asyncio.shield(asyncio.ensure_future(self._unload(info)))

    async def _unload(self, info: AdapterInfo) -> None:
        self._unloading[info.name] += 1
        try:
            await self._call(lambda call_id: UnloadAdapter(call_id, info.model, info.name))
        except BaseException:
            self._confirm_unload(info.name)
            raise

    def _confirm_unload(self, name: str) -> None:
        self._unloading[name] -= 1
        if self._unloading[name] <= 0:
            del self._unloading[name]

    async def fetch(self) -> list[AdapterInfo]:
        """The current state from the engine process: tiers, counts, and adapters that are being unloaded."""
        reply: AdapterListReply = await self._call(ListAdapters)
        return reply.infos

    def _notify_waiting(self) -> None:
        """Let each `settled` look again."""
        self._changed.set()
        self._changed.clear()

    # --- messages of the engine process ------------------------------------------------------------

    def restart_state(self) -> tuple[list[AdapterInfo], list[AdapterInfo]]:
        """For the next engine process: adapters that it must load, and adapters that it may load when needed."""
        return list(self._first), [info for info in self._infos.values() if info.state != "failed"]

    def ready(self, infos: Sequence[AdapterInfo], asleep: Collection[str] = ()) -> None:
        """An engine process has started with these adapters. asleep: models that it has not loaded."""
        self._first.clear()
        self._unloading.clear()
        kept = {name: info for name, info in self._infos.items() if info.model in asleep}
        self._infos = kept | {info.name: info for info in infos}
        self._notify_waiting()

    def on_event(self, message: AdapterLoaded | AdapterChanged) -> None:
        """An adapter has a new state. retired: the engine process has confirmed that it is to be unloaded."""
        info, before = message.info, self._infos.get(message.info.name)
        if info.state == "retired":
            self._confirm_unload(info.name)
            return
        if info.name in self._unloading:
            return  # sent before the engine process got the unload
        settled = before is not None and before.state == "ready"
        if info.state == "ready" and not (settled and before and before.revision > info.revision):
            self.set(info)
            self._on_loaded(info)
        elif info.state == "failed" and before is not None and not settled:
            self._infos[info.name] = info
        self._notify_waiting()

    def of_model(self, model: str) -> list[AdapterInfo]:
        """The adapters of a model that are ready."""
        return [info for info in self._infos.values() if info.model == model and info.state == "ready"]

    def number_anew(self, model: str) -> None:
        """The engine process numbers the revisions of a model's adapters anew, because it loads the model again."""
        for info in self.of_model(model):
            self._infos[info.name] = replace(info, revision=0)

    def forget_model(self, model: str) -> None:
        """Drop the adapters of a model that was unloaded."""
        self._infos = {name: info for name, info in self._infos.items() if info.model != model}
        self._notify_waiting()

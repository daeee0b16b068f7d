"""AdapterDesk: what the host does with messages about adapters. Reading them is the engines' affair, beside the steps.

All of it runs in the loop's thread; what ends elsewhere comes back through the inbox.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from quire.adapter_info import AdapterInfo
from quire.errors import BadRequest, ConfigError, NotFound, QuireError
from quire.host.faults import fault_of
from quire.host.inbox import Inbox
from quire.host.protocol import (
    AdapterChanged,
    AdapterLoaded,
    Adapters,
    AskAdapters,
    Failed,
    LoadAdapter,
    Message,
    UnloadAdapter,
    Unloaded,
)

log = logging.getLogger("quire.host")


class Shelf(Protocol):
    """What is needed of an engine's adapters (`quire.engine.adapter_shelf.AdapterShelf` is it)."""

    def infos(self) -> list[AdapterInfo]:
        """All there are."""
        ...

    def load(
        self, name: str, path: Path, *, pinned: bool = False, replacing: bool = True, keep_failure: bool = False
    ) -> Future[AdapterInfo]:
        """Begin to read an adapter."""
        ...

    def restore(self, info: AdapterInfo) -> None:
        """Know an adapter that need not be read yet."""
        ...

    def unload(self, name: str) -> Future[None]:
        """Let no request name it any more."""
        ...


class HasAdapters(Protocol):
    """An engine."""

    @property
    def adapters(self) -> Shelf:
        """Its adapters."""
        ...


class AdapterDesk:
    """Messages in, answers out. `engines`: those of the loop, by name."""

    def __init__(self, inbox: Inbox, send: Callable[[Message], None], engines: Mapping[str, HasAdapters]) -> None:
        self._inbox, self._send, self._engines = inbox, send, engines
        self._orders: dict[tuple[str, str], set[object]] = {}
        """Loads that are under way, by model and name; an unload withdraws them."""

    def start(self, first: Sequence[AdapterInfo], known: Sequence[AdapterInfo]) -> list[AdapterInfo]:
        """Load the first adapters of a server, all or none, and know those of an earlier host; what there is then.

        Blocks. Raises ConfigError.
        """
        loading = [(info, self._load(info, replacing=False, keep_failure=False)) for info in first]
        for info, future in loading:
            try:
                future.result()
            except QuireError as error:
                raise ConfigError(f"The adapter {info.name!r} could not be loaded: {error.message}") from error
        for info in known:
            if info.model in self._engines:
                self._know_again(info)
        return [info for engine in self._engines.values() for info in engine.adapters.infos()]

    def take(self, message: LoadAdapter | UnloadAdapter | AskAdapters) -> None:
        """Do what a message asks for, and answer it now or later."""
        match message:
            case LoadAdapter():
                self._begin(message)
            case UnloadAdapter():
                self._unload(message)
            case AskAdapters():
                infos = [info for engine in self._engines.values() for info in engine.adapters.infos()]
                self._send(Adapters(message.call, infos))

    def _begin(self, message: LoadAdapter) -> None:
        info = message.adapter
        try:
            loading = self._load(info, message.replacing, keep_failure=not message.wait)
        except QuireError as error:
            self._send(Failed(message.call, fault_of(error)))
            return
        if not message.wait:
            self._send(AdapterLoaded(message.call, replace(info, state="loading")))
            self._tell_later(info, loading)
            return

        def tell(error: BaseException | None) -> None:
            self._send(
                Failed(message.call, fault_of(error)) if error else AdapterLoaded(message.call, loading.result())
            )

        withdrawn = BadRequest(f"The adapter `{info.name}` was unloaded while it was being loaded.", "lora_name")
        self._follow(info, loading, tell, lambda: tell(withdrawn))

    def _unload(self, message: UnloadAdapter) -> None:
        try:
            going = self._shelf(message.model).unload(message.name)
        except QuireError as error:
            self._send(Failed(message.call, fault_of(error)))
            return
        self._orders.pop((message.model, message.name), None)
        # At once, so that what was sent before can be told from what is sent after.
        self._send(AdapterChanged(AdapterInfo(name=message.name, model=message.model, path="", state="retired")))
        log.info("adapter %s of %s is unloaded for new requests", message.name, message.model)
        going.add_done_callback(lambda _: self._inbox.put(lambda: self._send(Unloaded(message.call))))

    def _shelf(self, model: str) -> Shelf:
        if model not in self._engines:
            raise NotFound(f"The model `{model}` is not loaded.", "model")
        return self._engines[model].adapters

    def _load(self, info: AdapterInfo, replacing: bool, keep_failure: bool) -> Future[AdapterInfo]:
        loading = self._shelf(info.model).load(
            info.name, Path(info.path), pinned=info.pinned, replacing=replacing, keep_failure=keep_failure
        )
        loading.add_done_callback(partial(_log_loaded, info))
        return loading

    def _know_again(self, info: AdapterInfo) -> None:
        if info.state == "ready":
            self._shelf(info.model).restore(info)
        elif info.state == "loading":
            self._tell_later(info, self._load(info, replacing=True, keep_failure=True))

    def _tell_later(self, info: AdapterInfo, loading: Future[AdapterInfo]) -> None:
        """Nobody waits for it; the API process wants to know all the same."""

        def tell(error: BaseException | None) -> None:
            failed = error and replace(info, state="failed", error=fault_of(error).message)
            self._send(AdapterChanged(failed or loading.result()))

        self._follow(info, loading, tell, lambda: None)

    def _follow(
        self,
        info: AdapterInfo,
        loading: Future[AdapterInfo],
        then: Callable[[BaseException | None], None],
        withdrawn: Callable[[], None],
    ) -> None:
        """When it was read call `then` in the loop's thread, or `withdrawn` if it was unloaded meanwhile."""
        key, order = (info.model, info.name), object()
        self._orders.setdefault(key, set()).add(order)

        def settle() -> None:
            orders = self._orders.get(key, set())
            if order not in orders:
                withdrawn()
                return
            orders.remove(order)
            if not orders:
                del self._orders[key]
            then(loading.exception())

        loading.add_done_callback(lambda _: self._inbox.put(settle))


def _log_loaded(wanted: AdapterInfo, loading: Future[AdapterInfo]) -> None:
    if loading.cancelled():
        return
    if error := loading.exception():
        log.warning("adapter %s of %s could not be loaded: %s", wanted.name, wanted.model, error)
        return
    info, size = loading.result(), loading.result().num_bytes / 2**20
    about = f"{info.kind}, rank {info.rank}" if info.rank else info.kind
    log.info("adapter %s of %s is loaded: %s, %.1f MiB, %s", info.name, info.model, about, size, info.path)

"""Handles the messages about adapters in the engine process.

Everything here runs in the loop thread. The engines read adapter files in other threads; what follows a finished read
is passed back to the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from quire.engine_process.wire.adapter_changes import (
    AdapterChanged,
    AdapterListReply,
    AdapterLoaded,
    ListAdapters,
    LoadAdapter,
    RegisterAdapter,
    UnloadAdapter,
)
from quire.engine_process.wire.error_info import to_error_info
from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.protocol import CallFailed, UnloadDone
from quire.errors import BadRequest, ConfigError, NotFound, QuireError
from quire.types.adapter_info import AdapterInfo

log = logging.getLogger("quire.engine_process")


class AdapterRegistryProtocol(Protocol):
    """The part of an engine's adapters used here; `quire.engine.adapters.registry.AdapterRegistry` implements it."""

    def infos(self) -> list[AdapterInfo]: ...

    def load(
        self, name: str, path: Path, *, pinned: bool = False, replacing: bool = True, keep_failure: bool = False
    ) -> Future[AdapterInfo]:
        """Start to read an adapter in another thread."""
        ...

    def restore(self, info: AdapterInfo) -> None:
        """Register an adapter, in place of one of the same name. It is read when a request needs it."""
        ...

    def unload(self, name: str) -> Future[None]:
        """Refuse the adapter to new requests; done when its memory is free, or in use only by running requests."""
        ...


class HasAdapterRegistry(Protocol):
    """An engine, as far as its adapters are concerned."""

    @property
    def adapters(self) -> AdapterRegistryProtocol: ...


class AdapterMessageHandler:
    """Loads, unloads and lists adapters, and sends the answers.

    call_in_loop: passes a function to the loop thread. engines: the engines of the step loop, by name.
    """

    def __init__(
        self,
        call_in_loop: Callable[[Callable[[], None]], None],
        send: Callable[[WireMessage], None],
        engines: Mapping[str, HasAdapterRegistry],
    ) -> None:
        self._call_in_loop, self._send, self._engines = call_in_loop, send, engines
        self._pending_loads: dict[tuple[str, str], set[object]] = {}
        """Loads in progress, by model and name; an unload removes them, which cancels them."""

    def start(self, first: Sequence[AdapterInfo], known: Sequence[AdapterInfo]) -> list[AdapterInfo]:
        """Load the `first` adapters and restore those `known` from an earlier engine process; returns all adapters.

        Blocks until the first ones are loaded. Raises ConfigError if one of them cannot be.
        """
        loading = [(info, self._start_load(info, replacing=False, keep_failure=False)) for info in first]
        for info, future in loading:
            try:
                future.result()
            except QuireError as error:
                raise ConfigError(f"The adapter {info.name!r} could not be loaded: {error.message}") from error
        for info in known:
            if info.model in self._engines:
                self._restore(info)
        return [info for engine in self._engines.values() for info in engine.adapters.infos()]

    def handle(self, message: LoadAdapter | RegisterAdapter | UnloadAdapter | ListAdapters) -> None:
        """Carry out a message, and answer it now or later."""
        match message:
            case LoadAdapter():
                self._load(message)
            case RegisterAdapter(info):
                if info.model in self._engines:
                    self._registry(info.model).restore(info)
            case UnloadAdapter():
                self._unload(message)
            case ListAdapters():
                infos = [info for engine in self._engines.values() for info in engine.adapters.infos()]
                self._send(AdapterListReply(message.call_id, infos))

    def _load(self, message: LoadAdapter) -> None:
        info = message.adapter
        try:
            loading = self._start_load(info, message.replacing, keep_failure=not message.wait)
        except QuireError as error:
            self._send(CallFailed(message.call_id, to_error_info(error)))
            return
        if not message.wait:
            self._send(AdapterLoaded(message.call_id, replace(info, state="loading")))
            self._notify_later(info, loading)
            return

        def answer(error: BaseException | None) -> None:
            if error:
                self._send(CallFailed(message.call_id, to_error_info(error)))
            else:
                self._send(AdapterLoaded(message.call_id, loading.result()))

        canceled = BadRequest(f"The adapter `{info.name}` was unloaded while it was being loaded.", "lora_name")
        self._when_loaded(info, loading, answer, lambda: answer(canceled))

    def _unload(self, message: UnloadAdapter) -> None:
        try:
            unloading = self._registry(message.model).unload(message.name)
        except QuireError as error:
            self._send(CallFailed(message.call_id, to_error_info(error)))
            return
        self._pending_loads.pop((message.model, message.name), None)
        # Sent at once, so that the API process can tell messages about the unloaded adapter from later ones.
        self._send(AdapterChanged(AdapterInfo(name=message.name, model=message.model, path="", state="retired")))
        log.info("adapter %s of %s takes no more requests and is unloaded", message.name, message.model)
        unloading.add_done_callback(lambda _: self._call_in_loop(lambda: self._send(UnloadDone(message.call_id))))

    def _registry(self, model: str) -> AdapterRegistryProtocol:
        if model not in self._engines:
            raise NotFound(f"The model `{model}` is not loaded.", "model")
        return self._engines[model].adapters

    def _start_load(self, info: AdapterInfo, replacing: bool, keep_failure: bool) -> Future[AdapterInfo]:
        loading = self._registry(info.model).load(
            info.name, Path(info.path), pinned=info.pinned, replacing=replacing, keep_failure=keep_failure
        )
        loading.add_done_callback(partial(_log_loaded, info))
        return loading

    def _restore(self, info: AdapterInfo) -> None:
        if info.state == "ready":
            self._registry(info.model).restore(info)
        elif info.state == "loading":
            self._notify_later(info, self._start_load(info, replacing=True, keep_failure=True))

    def _notify_later(self, info: AdapterInfo, loading: Future[AdapterInfo]) -> None:
        """Report the outcome of a load for which no call is waiting."""

        def notify(error: BaseException | None) -> None:
            failed = error and replace(info, state="failed", error=to_error_info(error).message)
            self._send(AdapterChanged(failed or loading.result()))

        self._when_loaded(info, loading, notify, lambda: None)

    def _when_loaded(
        self,
        info: AdapterInfo,
        loading: Future[AdapterInfo],
        then: Callable[[BaseException | None], None],
        on_canceled: Callable[[], None],
    ) -> None:
        """After the load, call `then` in the loop thread, or `on_canceled` if the adapter was unloaded meanwhile."""
        key, token = (info.model, info.name), object()
        self._pending_loads.setdefault(key, set()).add(token)

        def finish() -> None:
            tokens = self._pending_loads.get(key, set())
            if token not in tokens:
                on_canceled()
                return
            tokens.remove(token)
            if not tokens:
                del self._pending_loads[key]
            then(loading.exception())

        loading.add_done_callback(lambda _: self._call_in_loop(finish))


def _log_loaded(asked: AdapterInfo, loading: Future[AdapterInfo]) -> None:
    if loading.cancelled():
        return
    if error := loading.exception():
        log.warning("adapter %s of %s could not be loaded: %s", asked.name, asked.model, error)
        return
    info, size = loading.result(), loading.result().num_bytes / 2**20
    description = f"{info.kind}, rank {info.rank}" if info.rank else info.kind
    log.info("adapter %s of %s is loaded: %s, %.1f MiB, %s", info.name, info.model, description, size, info.path)

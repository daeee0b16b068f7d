"""Adapters: which ones a model has, who uses them, and who may run because theirs has a seat.

    load ─▶ current ──unloaded, or loaded again──▶ retired ──its last request ends──▶ released

A request keeps the revision it came in with. It holds its adapter's seat from when it may begin until it ends,
so whoever has begun never waits for a seat. `load` and `unload` may be called from any thread; runtimes are
never asked two things at once but for `load`, which may take long. It knows no kind of adapter.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import RLock
from typing import Any

from quire.engine.runtimes import Runtime, Runtimes
from quire.errors import BadRequest, NotFound, QuireError
from quire.types import AdapterRef, Plan, Request

log = logging.getLogger(__name__)

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 1 << 20
PATIENCE = 512
"""How often a request can be told that there is no seat before others that want one wait behind it."""

Resolve = Callable[[str], Path | None]


@dataclass(slots=True, eq=False)
class _Adapter:
    """One revision of an adapter. num_users: requests accepted and not ended. holders: those that hold its seat."""

    ref: AdapterRef
    runtime: Runtime
    loaded: Any
    num_users: int = 0
    retired: bool = False
    seat: int = -1
    holders: set[str] = field(default_factory=set)


class Adapters:
    """The adapters of one model. `resolve` says where an adapter lies that is known by name only."""

    def __init__(self, runtimes: Runtimes, resolve: Resolve) -> None:
        self._runtimes, self._resolve = runtimes, resolve
        self._lock = RLock()
        self._revisions: dict[str, int] = {}
        self._current: dict[str, _Adapter] = {}
        self._adapters: dict[AdapterRef, _Adapter] = {}  # and those retired, until they are released
        self._of_request: dict[str, _Adapter] = {}
        self._refused: dict[str, int] = {}  # how often, by request, the one waiting longest first
        self._of_seq: dict[int, _Adapter] = {}

    # --- in any thread -----------------------------------------------------------------------------

    @property
    def refs(self) -> tuple[AdapterRef, ...]:
        """What requests may name, in order of loading."""
        with self._lock:
            return tuple(adapter.ref for adapter in self._current.values())

    def load(self, name: str, path: Path | None = None) -> AdapterRef:
        """Read and check an adapter, then let requests name it; one of that name is replaced by a new revision.

        path: its folder, None = ask the plugins. It blocks. Raises BadRequest (no such adapter, or not one that
        can be run here) and PluginFailed; then nothing has changed.
        """
        if not len(self._runtimes):
            raise BadRequest(f"The adapter `{name}` cannot be loaded: no adapter runtime is.", "lora_name")
        folder = path or self._resolve(name)
        if folder is None:
            raise BadRequest(f"No path was given for the adapter `{name}`, and no plugin knows one.", "lora_path")
        runtime = self._runtimes.of_kind(_kind(folder))
        loaded = runtime.call(runtime.built.load, name, folder)
        with self._lock:
            revision = self._revisions[name] = self._revisions.get(name, 0) + 1
            before = self._current.pop(name, None)
            adapter = _Adapter(AdapterRef(name=name, revision=revision), runtime, loaded)
            self._current[name] = self._adapters[adapter.ref] = adapter
            if before is not None:
                self._retire(before)
        return adapter.ref

    def unload(self, name: str) -> None:
        """Let no request name it any more; requests in flight finish on it. Raises NotFound."""
        with self._lock:
            adapter = self._current.pop(name, None)
            if adapter is None:
                raise NotFound(self._unknown(name))
            self._retire(adapter)

    def _unknown(self, name: str) -> str:
        known = ", ".join(self._current) or "none"
        return f"The adapter `{name}` is not loaded. Adapters loaded: {known}."

    def _retire(self, adapter: _Adapter) -> None:
        adapter.retired = True
        self._release_unused(adapter)

    def _release_unused(self, adapter: _Adapter) -> None:
        if adapter.retired and adapter.num_users == 0:
            del self._adapters[adapter.ref]
            self._tell(adapter, adapter.runtime.built.release)

    def _tell(self, adapter: _Adapter, method: Callable[[Any], None]) -> None:
        """Tell a runtime what it cannot refuse; nobody's request is at stake if it fails."""
        try:
            adapter.runtime.call(method, adapter.loaded)
        except QuireError:
            log.exception("The runtime of adapter %s failed; going on", adapter.ref.name)

    # --- in the engine's thread --------------------------------------------------------------------

    @contextmanager
    def entering(self, request: Request) -> Iterator[Request]:
        """The request with its adapter's current revision; it uses it once the block has ended well.

        Raises BadRequest when the adapter is not loaded.
        """
        if request.adapter is None:
            yield request
            return
        with self._lock:
            adapter = self._current.get(request.adapter.name)
            if adapter is None:
                reason = "" if len(self._runtimes) else " No adapter runtime is, either."
                raise BadRequest(self._unknown(request.adapter.name) + reason, "model")
            adapter.num_users += 1
        try:
            yield replace(request, adapter=adapter.ref)
        except BaseException:
            self._leave(adapter)
            raise
        self._of_request[request.id] = adapter

    def leave(self, request_id: str) -> None:
        """A request has ended; nothing if it used no adapter."""
        adapter = self._of_request.pop(request_id, None)
        if adapter is None:
            return
        self._refused.pop(request_id, None)
        with self._lock:
            if request_id in adapter.holders:
                adapter.holders.remove(request_id)
                if not adapter.holders:
                    self._tell(adapter, adapter.runtime.built.unseat)
            self._leave(adapter)

    def _leave(self, adapter: _Adapter) -> None:
        with self._lock:
            adapter.num_users -= 1
            self._release_unused(adapter)

    def ready(self, request: Request) -> bool:
        """Whether a request's adapter, if it has one, has a seat; from then on it keeps it. Raises QuireError."""
        adapter = self._of_request.get(request.id)
        if adapter is None or request.id in adapter.holders:
            return True
        if self._goes_behind(request.id, adapter):
            return False
        with self._lock:
            if not adapter.holders:
                seat = adapter.runtime.call(adapter.runtime.built.seat, adapter.loaded)
                if seat is None:
                    self._refused[request.id] = self._refused.get(request.id, 0) + 1
                    return False
                adapter.seat = seat
            adapter.holders.add(request.id)
        self._refused.pop(request.id, None)
        return True

    def pause(self, seconds: float) -> None:
        """Let others work if someone waits for a seat; for a loop that has nothing else to do."""
        if self._refused:
            time.sleep(seconds)

    def _goes_behind(self, request_id: str, adapter: _Adapter) -> bool:
        """Whether someone who wants a seat of the same runtime has waited too long to be overtaken again."""
        for other, count in self._refused.items():
            if count >= PATIENCE and self._of_request[other].runtime is adapter.runtime:
                return other != request_id
        return False

    def follow(self, plan: Plan) -> None:
        """Take in which seqs a step forgets and which it begins."""
        for seq_id in plan.ended:
            self._of_seq.pop(seq_id, None)
        for start in plan.started:
            if start.adapter is not None:
                self._of_seq[start.seq_id] = self._adapters[start.adapter]

    def clear(self) -> None:
        """Forget every seq, but no request."""
        self._of_seq.clear()

    def bind(self, plan: Plan) -> tuple[Any, dict[int, str]]:
        """What `Forward.adapters` carries while these chunks are computed; what went wrong, by seq."""
        failures: dict[int, str] = {}
        if not self._of_seq:
            return None, failures
        used = [self._of_seq.get(chunk.seq_id) for chunk in plan.chunks]
        bound: dict[int, Any] = {}
        for runtime in dict.fromkeys(adapter.runtime for adapter in used if adapter is not None):
            mine = [adapter is not None and adapter.runtime is runtime for adapter in used]
            seats = [a.seat if own and a else -1 for a, own in zip(used, mine, strict=True)]
            try:
                with self._lock:
                    bound[runtime.lane] = runtime.call(runtime.built.bind, plan, seats)
            except QuireError as error:
                failures |= {c.seq_id: error.message for c, own in zip(plan.chunks, mine, strict=True) if own}
        return self._runtimes.merged(bound), failures


def _kind(folder: Path) -> str:
    """The `peft_type` of an adapter's folder."""
    path = folder / CONFIG_FILE
    try:
        text = path.read_text(encoding="utf-8") if path.stat().st_size <= MAX_CONFIG_BYTES else ""
        kind = json.loads(text)["peft_type"]
    except OSError as error:
        raise BadRequest(f"{folder} is no adapter: {CONFIG_FILE} cannot be read ({error.strerror}).") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRequest(f"{path} must be a JSON object of at most 1 MiB with a `peft_type`.") from error
    return str(kind)

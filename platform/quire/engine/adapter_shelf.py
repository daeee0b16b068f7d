"""AdapterShelf: the adapters of a model by name; loading, replacing and unloading them while requests use them.

It may be used from any thread: everything happens under one lock, but for reading, which is done in the reader's
threads. An adapter that replaces another is read first; until then the old one answers.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path
from threading import RLock

from quire.adapter_info import AdapterInfo
from quire.engine.adapter import Adapter
from quire.engine.adapter_reader import AdapterReader, Read
from quire.engine.residency import Residency
from quire.errors import BadRequest, NotFound, Overloaded, QuireError
from quire.records import AdapterFacts
from quire.types import AdapterRef

MOST_ADAPTERS = 10_000
"""Adapters of one model that may be known, wherever they are."""

MOST_FAILED = 100
"""Adapters that could not be read and are still shown; the oldest are forgotten first."""


class AdapterShelf:
    """Who there is. `model`: the name of the base; `lock`: held while anything here or in `residency` changes."""

    def __init__(self, model: str, reader: AdapterReader, capacity: int, most_together: int, lock: RLock) -> None:  # type: ignore[valid-type]
        self._model, self._reader, self._lock = model, reader, lock
        self.residency = Residency(capacity, most_together, self._fetch, reader.let_go)
        self.current: dict[str, Adapter] = {}
        """What requests may name, in order of loading; those that failed too."""
        self.known: dict[AdapterRef, Adapter] = {}
        """These, those that are to replace them, and retired ones until they are gone."""
        self.num_loads = self.num_failures = self.num_reads = 0
        self._revisions = count(1)

    def infos(self) -> list[AdapterInfo]:
        """All there are, the oldest first."""
        with self._lock:
            return [adapter.info(self._model) for adapter in self.known.values()]

    def find(self, name: str) -> Adapter:
        """The adapter that requests mean by a name. Raises NotFound, BadRequest if it could not be read."""
        adapter = self.current.get(name)
        if adapter is None:
            known = ", ".join(self.current) or "none"
            raise NotFound(f"The adapter `{name}` is not loaded. Adapters loaded: {known}.", "model")
        if adapter.state == "failed":
            raise _failed(adapter)
        return adapter

    def load(
        self, name: str, path: Path, *, pinned: bool = False, replacing: bool = True, keep_failure: bool = False
    ) -> Future[AdapterInfo]:
        """Begin to read an adapter; requests may name it at once, and wait, or get the old one until it is there.

        replacing: whether the name may be in use. keep_failure: show what went wrong among the adapters, instead of
        leaving all as it was. Raises BadRequest and Overloaded at once; the Future's errors are BadRequest (not one
        that can be run here) and PluginFailed.
        """
        with self._lock:
            before = self.current.get(name)
            if before is not None and before.state != "failed" and not replacing:
                raise BadRequest(
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set "
                    "'load_inplace' to True.",
                    "lora_name",
                )
            if pinned:
                others = [a for a in self.known.values() if a.ref.name != name and a.state != "failed"]
                self.residency.check_pin(sum(other.pinned for other in others))
            if len(self.known) >= MOST_ADAPTERS:
                raise Overloaded(f"{MOST_ADAPTERS} adapters are loaded, the most allowed; unload some.")
            adapter = Adapter(AdapterRef(name=name, revision=next(self._revisions)), path, pinned, reading=True)
            self.known[adapter.ref] = adapter
            if before is None or before.state != "ready":
                self._place(adapter)
        return self._reader.begin(partial(self._load, keep_failure=keep_failure), adapter)

    def restore(self, info: AdapterInfo) -> None:
        """Know an adapter again that an earlier process had loaded; it is read when a request names it."""
        with self._lock:
            ref = AdapterRef(name=info.name, revision=next(self._revisions))
            facts = AdapterFacts(num_bytes=info.num_bytes, rank=info.rank, targets=info.targets)
            adapter = Adapter(ref, Path(info.path), info.pinned, state="ready", kind=info.kind, facts=facts)
            self.known[ref] = self.current[info.name] = adapter

    def unload(self, name: str) -> Future[None]:
        """Let no request name it any more; those in flight finish on it. Raises NotFound.

        The Future is done when its memory is free, or at once if requests still use it.
        """
        with self._lock:
            if name not in self.current:
                self.find(name)
            for adapter in [a for a in self.known.values() if a.ref.name == name and a.state == "loading"]:
                self._retire(adapter)
            freed = self._retire(self.current.pop(name))
        return freed or _done()

    def left(self, adapter: Adapter) -> None:
        """A request has ended that used it."""
        adapter.num_users -= 1
        self._drop_unused(adapter)

    # --- in the reader's threads -------------------------------------------------------------------

    def _load(self, adapter: Adapter, keep_failure: bool) -> AdapterInfo:
        try:
            read = self._reader.read(adapter)
        except Exception as error:
            with self._lock:
                self._could_not_read(adapter, _as_ours(error), keep_failure)
            raise
        with self._lock:
            self._take_in(adapter, read)
            withdrawn = adapter.state == "retired" and adapter.ref.name not in self.current
            self._finish(adapter)
        if withdrawn:
            raise BadRequest(f"The adapter `{adapter.ref.name}` was unloaded while it was being loaded.", "lora_name")
        return adapter.info(self._model)

    def _fetch(self, adapter: Adapter) -> None:
        adapter.reading = True
        self._reader.begin(self._read_again, adapter)

    def _read_again(self, adapter: Adapter) -> None:
        try:
            read = self._reader.read(adapter)
        except Exception as error:
            with self._lock:
                self._could_not_read(adapter, _as_ours(error), keep_failure=True)
            return
        with self._lock:
            self.num_reads += 1
            self._take_in(adapter, read)
            self._finish(adapter)

    # --- under the lock ----------------------------------------------------------------------------

    def _take_in(self, adapter: Adapter, read: Read) -> None:
        adapter.runtime, adapter.loaded, adapter.kind = read.runtime, read.loaded, read.kind
        adapter.facts, adapter.fingerprint, adapter.reading = read.facts, read.fingerprint, False

    def _finish(self, adapter: Adapter) -> None:
        """It is in memory now: it becomes what its name means, unless it came too late."""
        if adapter.state == "loading":
            self.num_loads += 1
            before = self.current.get(adapter.ref.name)
            if before is None or before.ref.revision > adapter.ref.revision:
                self._set_retired(adapter)
            else:
                adapter.state = "ready"
                self._place(adapter)
        if adapter.state == "retired" and not adapter.num_users:
            self._drop_unused(adapter)
        else:
            self.residency.keep(adapter)

    def _place(self, adapter: Adapter) -> None:
        """Let its name mean this one."""
        before = self.current.pop(adapter.ref.name, None)
        self.current[adapter.ref.name] = adapter
        if before not in (None, adapter):
            assert before is not None
            self._retire(before)

    def _could_not_read(self, adapter: Adapter, error: QuireError, keep_failure: bool) -> None:
        self.num_failures += 1
        adapter.reading, adapter.error = False, error
        self.residency.forget(adapter)
        current = self.current.get(adapter.ref.name)
        if adapter.state != "retired":
            adapter.state = "failed"
        if current is adapter and not keep_failure:
            del self.current[adapter.ref.name]
        elif current is not None and current is not adapter and current.ref.revision < adapter.ref.revision:
            current.complaint = f"It could not be loaded again: {error.message}"
        self._drop_unused(adapter)
        failed = [a for a in self.current.values() if a.state == "failed"]
        for oldest in failed[: max(0, len(failed) - MOST_FAILED)]:
            del self.current[oldest.ref.name]
            self._drop_unused(oldest)

    def _retire(self, adapter: Adapter) -> Future[None] | None:
        if adapter.state != "failed":
            self._set_retired(adapter)
        return self._drop_unused(adapter)

    def _set_retired(self, adapter: Adapter) -> None:
        adapter.state = "retired"
        self.residency.unpin(adapter)  # else those that finish on it could keep others out for ever

    def _drop_unused(self, adapter: Adapter) -> Future[None] | None:
        """Forget it if nobody can need it any more; what is done when its memory is free."""
        if adapter.num_users or adapter.reading or self.current.get(adapter.ref.name) is adapter:
            return None
        if adapter.state not in ("retired", "failed"):
            return None
        self.known.pop(adapter.ref, None)
        return self.residency.forget(adapter)


def _failed(adapter: Adapter) -> QuireError:
    reason = "" if adapter.error is None else adapter.error.message
    return BadRequest(f"The adapter `{adapter.ref.name}` could not be loaded: {reason}", "model")


def _as_ours(error: Exception) -> QuireError:
    if isinstance(error, QuireError):
        return error
    return QuireError(f"The adapter could not be read: {type(error).__name__}: {error}")


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done

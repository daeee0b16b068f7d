"""The adapters of one model by name and revision: loads, replaces and unloads them while requests use them.

Any thread may use it. Everything happens under one lock, except reading, which is done in the loader's threads. An
adapter that replaces another is read first; until then requests get the old one.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path
from threading import RLock

from quire.engine.adapters.host_cache import HostAdapterCache
from quire.engine.adapters.loader import AdapterLoader, LoadResult
from quire.engine.adapters.modality_adapters import is_of_modality
from quire.engine.adapters.revision import AdapterRevision
from quire.errors import BadRequest, NotFound, Overloaded, QuireError
from quire.records import AdapterMetadata
from quire.types import AdapterRef
from quire.types.adapter_info import AdapterInfo

MAX_ADAPTERS = 10_000
"""Revisions of one model's adapters, in any tier."""

MAX_FAILED = 100
"""Failed adapters that are still listed; the oldest are removed first."""


class AdapterRegistry:
    """Registry of the adapters of one base model, by name and revision.

    model: the name of the base model. capacity: adapters in host memory. lock: held while anything here or in
    `host_cache` changes.
    """

    def __init__(
        self,
        model: str,
        loader: AdapterLoader,
        capacity: int,
        max_per_request: int,
        lock: RLock,  # type: ignore[valid-type]
    ) -> None:
        self._model, self._loader, self._lock = model, loader, lock
        self.host_cache = HostAdapterCache(capacity, max_per_request, self._start_reading, loader.free)
        self.current: dict[str, AdapterRevision] = {}
        """What requests may name, in order of loading, failed adapters included."""
        self.known: dict[AdapterRef, AdapterRevision] = {}
        """`current`, revisions that are loading to replace those, and retired ones that requests still use."""
        self.num_loads = self.num_failures = self.num_reads = 0
        self._revisions = count(1)

    def infos(self) -> list[AdapterInfo]:
        """All known revisions, the oldest first, but not those of modalities, which belong to the model."""
        with self._lock:
            return [a.info(self._model) for a in self.known.values() if not is_of_modality(a.ref.name)]

    def find(self, name: str) -> AdapterRevision:
        """The current revision of a name. Raises NotFound, and BadRequest if it could not be read."""
        adapter = self.current.get(name)
        if adapter is None:
            known = ", ".join(one for one in self.current if not is_of_modality(one)) or "none"
            raise NotFound(f"The adapter `{name}` is not loaded. Adapters loaded: {known}.", "model")
        if adapter.state == "failed":
            raise _load_error(adapter)
        return adapter

    def load(
        self, name: str, path: Path, *, pinned: bool = False, replacing: bool = True, keep_failure: bool = False
    ) -> Future[AdapterInfo]:
        """Start reading an adapter. Requests may name it at once; they wait for it, or get the old revision until then.

        replacing: the name may be in use. keep_failure: list the adapter with its error if it cannot be read, instead
        of leaving everything as it was. Raises BadRequest and Overloaded at once. The Future raises BadRequest (the
        adapter cannot be run here) and PluginFailed.
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
                self.host_cache.check_pin(sum(other.pinned for other in others))
            if len(self.known) >= MAX_ADAPTERS:
                raise Overloaded(f"{MAX_ADAPTERS} adapters are loaded, which is the maximum; unload some.")
            ref = AdapterRef(name=name, revision=next(self._revisions))
            adapter = self.known[ref] = AdapterRevision(ref, path, pinned, is_reading=True)
            if before is None or before.state != "ready":
                self._activate(adapter)
        return self._loader.submit(partial(self._load, keep_failure=keep_failure), adapter)

    def restore(self, info: AdapterInfo) -> None:
        """Register an adapter that another process has loaded, in place of one of the same name.

        It is read when a request names it, if its files are still the same.
        """
        with self._lock:
            ref = AdapterRef(name=info.name, revision=next(self._revisions))
            metadata = AdapterMetadata(
                num_bytes=info.num_bytes,
                rank=info.rank,
                targets=info.targets,
                virtual_tokens=info.virtual_tokens,
                has_virtual_kv=info.has_virtual_kv,
            )
            adapter = AdapterRevision(
                ref,
                Path(info.path),
                info.pinned,
                state="ready",
                peft_type=info.kind,
                metadata=metadata,
                fingerprint=info.fingerprint or None,
            )
            self.known[ref] = adapter
            self._activate(adapter)

    def unload(self, name: str) -> Future[None]:
        """Remove a name. Requests in flight finish with the adapter. Raises NotFound.

        The Future is done when the memory is free, or at once if requests still use the adapter.
        """
        with self._lock:
            if name not in self.current:
                self.find(name)
            for adapter in [a for a in self.known.values() if a.ref.name == name and a.state == "loading"]:
                self._retire(adapter)
            freed = self._retire(self.current.pop(name))
        return freed or _done()

    def release_user(self, adapter: AdapterRevision) -> None:
        """A request that used the adapter has ended. The caller holds the lock."""
        adapter.num_active -= 1
        self._drop_unused(adapter)

    # --- in the loader's threads -------------------------------------------------------------------

    def _load(self, adapter: AdapterRevision, keep_failure: bool) -> AdapterInfo:
        try:
            read = self._loader.read(adapter)
        except Exception as error:
            with self._lock:
                self._on_load_failed(adapter, _as_quire_error(error), keep_failure)
            raise
        with self._lock:
            self._set_loaded(adapter, read)
            withdrawn = adapter.state == "retired" and adapter.ref.name not in self.current
            self._finish(adapter)
        if withdrawn:
            raise BadRequest(f"The adapter `{adapter.ref.name}` was unloaded while it was being loaded.", "lora_name")
        return adapter.info(self._model)

    def _start_reading(self, adapter: AdapterRevision) -> None:
        adapter.is_reading = True
        self._loader.submit(self._read_again, adapter)

    def _read_again(self, adapter: AdapterRevision) -> None:
        try:
            read = self._loader.read(adapter)
        except Exception as error:
            with self._lock:
                self._on_load_failed(adapter, _as_quire_error(error), keep_failure=True)
            return
        with self._lock:
            self.num_reads += 1
            self._set_loaded(adapter, read)
            self._finish(adapter)

    # --- under the lock ----------------------------------------------------------------------------

    def _set_loaded(self, adapter: AdapterRevision, read: LoadResult) -> None:
        adapter.runtime, adapter.loaded, adapter.peft_type = read.runtime, read.loaded, read.peft_type
        adapter.metadata, adapter.fingerprint, adapter.is_reading = read.metadata, read.fingerprint, False

    def _finish(self, adapter: AdapterRevision) -> None:
        """Make an adapter that was read the current one of its name, unless it was unloaded or replaced meanwhile."""
        if adapter.state == "loading":
            self.num_loads += 1
            before = self.current.get(adapter.ref.name)
            if before is None or before.ref.revision > adapter.ref.revision:
                self._set_retired(adapter)
            else:
                adapter.state = "ready"
                self._activate(adapter)
        if adapter.state == "retired" and not adapter.num_active:
            self._drop_unused(adapter)
        else:
            self.host_cache.put(adapter)

    def _activate(self, adapter: AdapterRevision) -> None:
        """Make it the current revision of its name, and retire the one before."""
        before = self.current.pop(adapter.ref.name, None)
        self.current[adapter.ref.name] = adapter
        if before not in (None, adapter):
            assert before is not None
            self._retire(before)

    def _on_load_failed(self, adapter: AdapterRevision, error: QuireError, keep_failure: bool) -> None:
        self.num_failures += 1
        adapter.is_reading, adapter.error = False, error
        self.host_cache.remove(adapter)
        current = self.current.get(adapter.ref.name)
        if adapter.state != "retired":
            adapter.state = "failed"
        if current is adapter and not keep_failure:
            del self.current[adapter.ref.name]
        elif current is not None and current is not adapter and current.ref.revision < adapter.ref.revision:
            current.reload_error = f"It could not be loaded again: {error.message}"
        self._drop_unused(adapter)
        failed = [a for a in self.current.values() if a.state == "failed"]
        for oldest in failed[: max(0, len(failed) - MAX_FAILED)]:
            del self.current[oldest.ref.name]
            self._drop_unused(oldest)

    def _retire(self, adapter: AdapterRevision) -> Future[None] | None:
        if adapter.state != "failed":
            self._set_retired(adapter)
        return self._drop_unused(adapter)

    def _set_retired(self, adapter: AdapterRevision) -> None:
        adapter.state = "retired"
        self.host_cache.unpin(adapter)  # a retired one that stays in use must not block a place for ever

    def _drop_unused(self, adapter: AdapterRevision) -> Future[None] | None:
        """Remove an adapter that no request uses or can name. The result is done when its memory is free."""
        if adapter.num_active or adapter.is_reading or self.current.get(adapter.ref.name) is adapter:
            return None
        if adapter.state not in ("retired", "failed"):
            return None
        self.known.pop(adapter.ref, None)
        return self.host_cache.remove(adapter)


def _load_error(adapter: AdapterRevision) -> QuireError:
    reason = "" if adapter.error is None else adapter.error.message
    return BadRequest(f"The adapter `{adapter.ref.name}` could not be loaded: {reason}", "model")


def _as_quire_error(error: Exception) -> QuireError:
    if isinstance(error, QuireError):
        return error
    return QuireError(f"The adapter could not be read: {type(error).__name__}: {error}")


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done

"""Reads adapters in background threads and frees those that are no longer needed.

The threads run at idle priority and use one core each. Files are read in a separate process (`quire.isolation`).
Freeing has a thread of its own, so that unloading does not wait for a read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from quire.engine.adapters.attached_runtimes import AttachedRuntime, AttachedRuntimes
from quire.engine.adapters.folder import Fingerprint, fingerprint, read_peft_type
from quire.engine.adapters.revision import AdapterRevision
from quire.errors import BadRequest
from quire.isolation.idle_thread import compute_when_idle
from quire.isolation.isolated_calls import IsolatedCalls
from quire.records import AdapterMetadata

T = TypeVar("T")

NUM_THREADS = 2
"""Two, so that a small adapter need not wait for a large one."""


@dataclass(frozen=True)
class LoadResult:
    """What reading an adapter yields. loaded: the runtime's object, with the weights in host memory."""

    runtime: AttachedRuntime
    peft_type: str
    loaded: Any
    metadata: AdapterMetadata
    fingerprint: Fingerprint


class AdapterLoader:
    """The loader threads of one model. max_rank: larger ranks are rejected. isolated: calls what reads files."""

    def __init__(self, runtimes: AttachedRuntimes, max_rank: int, isolated: IsolatedCalls) -> None:
        self._runtimes, self._max_rank, self._isolated = runtimes, max_rank, isolated
        self._threads = ThreadPoolExecutor(NUM_THREADS, "adapters", initializer=compute_when_idle)
        self._freeing = ThreadPoolExecutor(1, "adapters-freed", initializer=compute_when_idle)
        self._last_freed: Future[None] | None = None
        if len(runtimes):
            isolated.prepare(fingerprint)

    def submit(self, work: Callable[[AdapterRevision], T], adapter: AdapterRevision) -> Future[T]:
        """Call `work` in a loader thread."""
        return self._threads.submit(work, adapter)

    def read(self, adapter: AdapterRevision) -> LoadResult:
        """Read and check an adapter. Raises BadRequest if it cannot be run here, and PluginFailed.

        The files of an adapter that was read before must not have changed, because the prefix cache has pages that
        were computed with the old weights.
        """
        if self._last_freed is not None:
            wait([self._last_freed])  # on a busy machine the thread may be slow; memory must not grow meanwhile
        before = self._fingerprint(adapter.path)
        if adapter.fingerprint not in (None, before):
            raise BadRequest(
                f"The files of the adapter `{adapter.ref.name}` have changed since it was loaded; "
                "load it again with `load_inplace`.",
                "model",
            )
        peft_type = str(self._isolated(read_peft_type, str(adapter.path)))
        runtime = self._runtimes.find(peft_type)
        loaded = runtime.call(runtime.built.load, adapter.ref.name, adapter.path)
        try:
            metadata: AdapterMetadata = runtime.call(runtime.built.describe, loaded)
            if metadata.rank > self._max_rank:
                raise BadRequest(
                    f"The adapter `{adapter.ref.name}` has rank {metadata.rank}; the largest allowed is "
                    f"{self._max_rank} (--max-lora-rank).",
                    "lora_path",
                )
            if self._fingerprint(adapter.path) != before:
                raise BadRequest("The adapter's files changed while they were read; try again.", "lora_path")
        except BaseException:
            runtime.notify(runtime.built.release, loaded)
            raise
        return LoadResult(runtime, peft_type, loaded, metadata, before)

    def _fingerprint(self, path: Path) -> Fingerprint:
        return tuple(tuple(entry) for entry in self._isolated(fingerprint, str(path)))

    def free(self, adapter: AdapterRevision, loaded: Any) -> Future[None]:
        """Let the runtime release `loaded`, in a thread, because freeing memory takes time."""
        assert adapter.runtime is not None, "it was read"
        self._last_freed = self._freeing.submit(_release, adapter.runtime, loaded)
        return self._last_freed

    def close(self) -> None:
        """Cancel what has not started, end the processes that read files, and wait for the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._isolated.close()
        self._threads.shutdown(wait=True)
        self._freeing.shutdown(wait=True)


def _release(runtime: AttachedRuntime, loaded: Any) -> None:
    runtime.notify(runtime.built.release, loaded)
    with suppress(AttributeError, OSError):  # only glibc has malloc_trim
        # Returns to the system what reading allocated temporarily; it is spread over the arenas of several threads.
        ctypes.CDLL(None).malloc_trim(0)

"""AdapterReader: reads adapters in threads of its own, beside the steps, and lets go of what is not needed any more.

Its threads are humble, and use one core each. Files are read in a process that can be ended (`quire.isolated_calls`).
Freeing has a thread to itself, so that unloading waits for no reader.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from quire.engine.adapter import Adapter
from quire.engine.adapter_folder import Fingerprint, fingerprint, kind_of
from quire.engine.runtimes import Runtime, Runtimes
from quire.errors import BadRequest
from quire.idle_thread import run_when_idle
from quire.isolated_calls import IsolatedCalls
from quire.records import AdapterFacts

T = TypeVar("T")

NUM_THREADS = 2
"""So that a small adapter need not wait for a large one."""


@dataclass(frozen=True)
class Read:
    """What reading an adapter gave."""

    runtime: Runtime
    kind: str
    loaded: Any
    facts: AdapterFacts
    fingerprint: Fingerprint


class AdapterReader:
    """Reads for one model. max_rank: larger ranks are refused. apart: reads files, where they can do no harm."""

    def __init__(self, runtimes: Runtimes, max_rank: int, apart: IsolatedCalls) -> None:
        self._runtimes, self._max_rank, self._apart = runtimes, max_rank, apart
        others = (torch.get_num_threads(),)
        self._threads = ThreadPoolExecutor(NUM_THREADS, "adapters", initializer=_step_back, initargs=others)
        self._freeing = ThreadPoolExecutor(1, "adapters-freed", initializer=_step_back, initargs=others)
        if len(runtimes):
            apart.prepare(fingerprint)

    def begin(self, work: Callable[[Adapter], T], adapter: Adapter) -> Future[T]:
        """Call `work` in one of the threads."""
        return self._threads.submit(work, adapter)

    def read(self, adapter: Adapter) -> Read:
        """Read and check an adapter. Raises BadRequest for what cannot be run here, and PluginFailed.

        One that was read before must be what it was: its pages in the cache are those of the old weights.
        """
        before = self._fingerprint(adapter.path)
        if adapter.fingerprint not in (None, before):
            raise BadRequest(
                f"The files of the adapter `{adapter.ref.name}` have changed since it was loaded; "
                "load it again with `load_inplace`.",
                "model",
            )
        kind = str(self._apart(kind_of, str(adapter.path)))
        runtime = self._runtimes.of_kind(kind)
        loaded = runtime.call(runtime.built.load, adapter.ref.name, adapter.path)
        try:
            facts: AdapterFacts = runtime.call(runtime.built.describe, loaded)
            if facts.rank > self._max_rank:
                raise BadRequest(
                    f"The adapter `{adapter.ref.name}` has rank {facts.rank}; the largest allowed is {self._max_rank} "
                    "(--max-lora-rank).",
                    "lora_path",
                )
            if self._fingerprint(adapter.path) != before:
                raise BadRequest("The adapter's files changed while they were read; try again.", "lora_path")
        except BaseException:
            runtime.tell(runtime.built.release, loaded)
            raise
        return Read(runtime, kind, loaded, facts, before)

    def _fingerprint(self, path: Path) -> Fingerprint:
        return tuple(tuple(about) for about in self._apart(fingerprint, str(path)))

    def let_go(self, adapter: Adapter, loaded: Any) -> Future[None]:
        """Let the adapter's runtime forget what it had loaded, in a thread: freeing memory takes time."""
        assert adapter.runtime is not None, "it was read"
        return self._freeing.submit(_release, adapter.runtime, loaded)

    def close(self) -> None:
        """Give up what has not begun, end what reads files, and wait for the rest."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._apart.close()
        self._threads.shutdown(wait=True)
        self._freeing.shutdown(wait=True)


def _release(runtime: Runtime, loaded: Any) -> None:
    runtime.tell(runtime.built.release, loaded)
    with suppress(AttributeError, OSError):  # glibc has it
        # What reading took for a while is free too, and lies scattered in what malloc keeps of each thread.
        ctypes.CDLL(None).malloc_trim(0)


def _step_back(others: int) -> None:
    """`others`: what torch's number of threads is for everyone else."""
    torch.set_num_threads(1)  # what this thread computes must not take the cores of the steps
    # It also is what threads get that use torch for the first time later, so one of those sets it back.
    restores = threading.Thread(target=torch.set_num_threads, args=(others,))
    restores.start()
    restores.join()
    run_when_idle()

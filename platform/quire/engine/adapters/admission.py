"""Decides which requests get adapter slots when more adapters are needed than fit on the device or in host memory.

Requests with the same adapter set are queued together. While slots are free, every request starts at once. When an
adapter set finds no slot, it queues, and the adapter with the oldest lease is closed: it admits only requests that
arrived before, and at most REQUESTS_PER_LEASE of these. Its slot becomes free when they end, and the front of the queue
gets it. So each adapter set waits for at most one lease of every set before it, whatever arrives later, and requests
with one adapter still run together. (The gated discipline of polling systems: Takagi, "Analysis of Polling Systems",
1986.)

Places in host memory are reserved for adapters that hold slots and then for whole adapter sets, from the front of the
queue. A request acquires all its slots or none, so there is no hold-and-wait and therefore no deadlock.

Every call holds the lock of `quire.engine.adapters.engine_adapters`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from quire.engine.adapters.attached_runtimes import AttachedRuntime
from quire.engine.adapters.host_cache import HostAdapterCache
from quire.engine.adapters.revision import AdapterRequest, AdapterRevision, AdapterSet

REQUESTS_PER_LEASE = 32
"""Requests that an adapter still admits while others wait for its slot."""


@dataclass(slots=True)
class _SlotLease:
    """The time for which an adapter holds a slot. closed_at: requests that arrived later are not admitted; None: all
    are. left: how many a closed lease still admits.
    """

    closed_at: int | None = None
    left: int = REQUESTS_PER_LEASE

    def admits(self, request: AdapterRequest) -> bool:
        return self.closed_at is None or (request.arrival < self.closed_at and self.left > 0)


@dataclass(slots=True)
class _Eligible:
    """The queued adapter sets that can make progress. cache_version: the state of the host cache that this holds for.

    has_places: they are in host memory or have places there. may_start: they may acquire slots now.
    """

    cache_version: int
    has_places: set[AdapterSet] = field(default_factory=set)
    may_start: set[AdapterSet] = field(default_factory=set)


class SlotAdmission:
    """The queue for the slots of all runtimes of a model. slots_per_runtime: adapters of one runtime on the device."""

    def __init__(self, slots_per_runtime: int, num_runtimes: int, host_cache: HostAdapterCache) -> None:
        self._slots_per_runtime, self._num_runtimes, self._host_cache = slots_per_runtime, num_runtimes, host_cache
        self._num_arrived = 0
        self._leases: dict[AdapterRevision, _SlotLease] = {}  # the oldest first
        self._queue: dict[AdapterSet, None] = {}  # those that found no slot, in order of arrival
        self._waiting: Counter[AdapterSet] = Counter()  # requests that have no slots yet
        self._eligible: _Eligible | None = None  # None: must be recomputed
        self._on_device: dict[tuple[int, int], AdapterRevision] = {}  # by runtime_index and slot

    @property
    def num_loaded(self) -> int:
        """Adapters that hold slots."""
        return len(self._leases)

    @property
    def running(self) -> Iterable[AdapterRevision]:
        """Adapters that hold slots."""
        return self._leases.keys()

    def names(self, max_waiting: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of adapters that hold slots, and of at most `max_waiting` that queued requests need."""
        waiting = dict.fromkeys(adapter.ref.name for adapter_set in self._queue for adapter in adapter_set)
        return tuple(adapter.ref.name for adapter in self._leases), tuple(waiting)[:max_waiting]

    @property
    def num_deferred(self) -> int:
        """Requests whose adapter sets are queued."""
        return sum(self._waiting[adapter_set] for adapter_set in self._queue)

    @property
    def has_waiting(self) -> bool:
        return bool(self._queue)

    def enqueue(self, request_id: str, adapter_set: AdapterSet) -> AdapterRequest:
        self._num_arrived += 1
        self._waiting[adapter_set] += 1
        return AdapterRequest(request_id, self._num_arrived, adapter_set)

    def try_start(self, request: AdapterRequest) -> bool:
        """Whether a request has its slots, which it then holds until `finish`. Raises what runtimes raise."""
        adapter_set = request.adapter_set
        if adapter_set not in self._queue:
            if self._join_leases(request):
                return True
            self._queue[adapter_set] = self._eligible = None
        if adapter_set not in self._state().has_places or not self._host_cache.prefetch(adapter_set):
            return False
        return adapter_set in self._state().may_start and self._acquire_slots(request)

    def finish(self, request: AdapterRequest) -> None:
        """Release the slots of a request that ended. Failures of runtimes are logged."""
        if not request.holds_slots:
            self._remove_waiting(request.adapter_set)
            return
        for adapter in request.adapter_set:
            adapter.holding_requests.discard(request.request_id)
            if not adapter.holding_requests:
                self._eligible = None
                del self._leases[adapter]
                _release_slot(adapter)

    def _join_leases(self, request: AdapterRequest) -> bool:
        """Whether all its adapters hold slots and admit it; then it holds them too."""
        if self._queue:
            self._state()  # closes leases of adapters whose slots others need
        leases = [self._leases.get(adapter) for adapter in request.adapter_set]
        if not all(lease is not None and lease.admits(request) for lease in leases):
            return False
        self._hold(request)
        return True

    def _hold(self, request: AdapterRequest) -> None:
        for adapter in request.adapter_set:
            adapter.holding_requests.add(request.request_id)
            self._leases[adapter].left -= self._leases[adapter].closed_at is not None
        request.holds_slots = True
        self._remove_waiting(request.adapter_set)

    def _remove_waiting(self, adapter_set: AdapterSet) -> None:
        self._waiting[adapter_set] -= 1
        if not self._waiting[adapter_set]:
            del self._waiting[adapter_set]
            self._dequeue(adapter_set)

    def _dequeue(self, adapter_set: AdapterSet) -> None:
        self._queue.pop(adapter_set, None)
        self._eligible = None

    def _acquire_slots(self, request: AdapterRequest) -> bool:
        """Acquire slots for the whole adapter set, or for none of it if one cannot be had now."""
        acquired: list[AdapterRevision] = []
        try:
            for adapter in request.adapter_set:
                if adapter not in self._leases and not self._acquire_slot(adapter):
                    self._release_slots(acquired)
                    return False
                acquired += [] if adapter in self._leases else [adapter]
        except BaseException:
            self._release_slots(acquired)
            raise
        for adapter in request.adapter_set:
            self._leases.pop(adapter, None)
            self._leases[adapter] = _SlotLease()
        self._dequeue(request.adapter_set)
        self._hold(request)
        return True

    def _acquire_slot(self, adapter: AdapterRevision) -> bool:
        runtime = _runtime(adapter)
        slot = runtime.call(runtime.built.acquire_slot, adapter.loaded)
        if slot is None:
            return False
        evicted = self._on_device.get((runtime.runtime_index, slot))
        if evicted is not None:
            evicted.on_device = False
        self._on_device[runtime.runtime_index, slot] = adapter
        adapter.slot, adapter.on_device = slot, True
        return True

    def _release_slots(self, adapters: list[AdapterRevision]) -> None:
        for adapter in adapters:
            _release_slot(adapter)

    def _state(self) -> _Eligible:
        if self._eligible is None or self._eligible.cache_version != self._host_cache.version:
            self._eligible = self._recompute()
        return self._eligible

    def _recompute(self) -> _Eligible:
        """Assign places in host memory and slots from the front of the queue; close leases if they do not suffice."""
        eligible, slots_short = _Eligible(self._host_cache.version), False
        free = Counter({runtime_index: self._slots_per_runtime for runtime_index in range(self._num_runtimes)})
        free.subtract(adapter.runtime_index for adapter in self._leases)
        with_slot, protected, num_missing = set(self._leases), set(self._leases), 0
        for adapter_set in self._queue:
            needed = protected.union(adapter_set)
            num_missing = sum(not adapter.pinned for adapter in needed) - self._host_cache.num_unpinned
            if num_missing > 0:
                break  # sets behind this one get no place either, or this one could starve
            protected.update(adapter_set)
            eligible.has_places.add(adapter_set)
            if any(adapter.loaded is None for adapter in adapter_set):
                continue  # a set that waits for the disk does not block slots for those behind it
            new = [adapter for adapter in adapter_set if adapter not in with_slot]
            with_slot.update(new)
            free.subtract(adapter.runtime_index for adapter in new)
            slots_short = slots_short or any(free[adapter.runtime_index] < 0 for adapter in new)
            if not slots_short:
                eligible.may_start.add(adapter_set)
        self._host_cache.protected = protected
        self._close_leases(free, max(0, num_missing))
        return eligible

    def _close_leases(self, free: Counter[int], num_missing: int) -> None:
        """Close the oldest leases, as many as others need slots or places in host memory, and reopen the rest."""
        for adapter, lease in self._leases.items():
            if free[adapter.runtime_index] < 0 or num_missing > 0:
                free[adapter.runtime_index] += free[adapter.runtime_index] < 0
                num_missing -= 1
                if lease.closed_at is None:
                    lease.closed_at, lease.left = self._num_arrived + 1, REQUESTS_PER_LEASE
            else:
                lease.closed_at = None


def _runtime(adapter: AdapterRevision) -> AttachedRuntime:
    assert adapter.runtime is not None, "it was read"
    return adapter.runtime


def _release_slot(adapter: AdapterRevision) -> None:
    runtime = _runtime(adapter)
    runtime.notify(runtime.built.release_slot, adapter.loaded)

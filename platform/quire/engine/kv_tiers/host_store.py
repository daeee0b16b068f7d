"""The tier in host memory: blobs in a dict, the least recently used first to go."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from quire.records import KvStoreUse


class HostStore:
    """A `KvStoreImpl` in memory. capacity: bytes of all blobs together."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blobs: OrderedDict[str, bytes] = OrderedDict()  # least recently used first
        self._num_bytes = self._num_evictions = 0
        self._lock = Lock()

    def contains(self, keys: Sequence[str]) -> Sequence[bool]:
        """Whether it has a blob, for each key."""
        return [key in self._blobs for key in keys]

    def get(self, key: str) -> bytes | None:
        """The blob, which is now the most recently used one."""
        with self._lock:
            blob = self._blobs.get(key)
            if blob is not None:
                self._blobs.move_to_end(key)
            return blob

    def put(self, key: str, blob: bytes, ttl_s: float | None) -> None:
        """Keep a blob that is not larger than all of the capacity."""
        with self._lock:
            self._drop(key)
            if len(blob) > self.capacity:
                return
            self._blobs[key] = blob
            self._num_bytes += len(blob)
            while self._num_bytes > self.capacity:
                self._drop(next(iter(self._blobs)))
                self._num_evictions += 1

    def remove(self, key: str) -> None:
        """Forget the blob of a key."""
        with self._lock:
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._num_bytes -= len(self._blobs.pop(key, b""))

    def use(self) -> KvStoreUse:
        """What it holds now."""
        with self._lock:
            return KvStoreUse(num_bytes=self._num_bytes, num_blobs=len(self._blobs), num_evictions=self._num_evictions)

    def close(self) -> None:
        """Free the memory of all blobs."""
        with self._lock:
            self._blobs.clear()
            self._num_bytes = 0

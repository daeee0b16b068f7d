"""Conformance of stores of KV pages."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from quire.records import KvStore, KvStoreContext
from quire_testing.require import require

KEYS = [f"{number:032x}" for number in (0, 1, 2**64, 2**128 - 1)]


def check_kv_store(
    record: KvStore, *, settings: Mapping[str, Any] | None = None, options: Mapping[str, Any] | None = None
) -> None:
    """It returns the last blob of a key or none, never another's, removes what it is asked to, and takes calls of many
    threads.

    settings: with which it can be built, so that it has room for a few kilobytes.
    """
    settings = settings or {}
    unknown = set(settings) - record.settings
    require(not unknown, f"{record.name} is given settings that it does not name: {', '.join(sorted(unknown))}.")
    store = record.build(KvStoreContext(options=options or {}, settings=settings))
    for key in KEYS:
        store.remove(key)
    require(not any(store.contains(KEYS)), f"{record.name} has blobs that were removed.")
    require(len(store.contains([])) == 0, f"{record.name} answers for keys that it was not asked for.")
    store.put(KEYS[0], b"first", None)
    store.put(KEYS[0], b"second", 1000.0)
    require(store.get(KEYS[0]) in (b"second", None), f"{record.name} returns a blob that was replaced.")
    require(store.get(KEYS[1]) is None, f"{record.name} returns a blob that was never put.")

    def work(key: str) -> bool:
        for length in (0, 1, 1000):
            store.put(key, key.encode() * length, None)
            if store.get(key) not in (key.encode() * length, None):
                return False
        return True

    with ThreadPoolExecutor(len(KEYS)) as threads:
        require(all(threads.map(work, KEYS)), f"{record.name} mixes the blobs of several threads up.")
    require(any(store.contains(KEYS)), f"{record.name} keeps nothing.")
    require(store.use().num_bytes >= 0, f"{record.name} holds less than nothing.")
    for key in KEYS:
        store.remove(key)
    require(not any(store.contains(KEYS)), f"{record.name} has blobs that were removed.")
    store.close()

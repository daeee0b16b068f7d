"""Stores of KV pages outside of the device's memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, kw_only=True)
class KvStoreContext:
    """What a store is built with. settings: its keys of `--kv-store-config`."""

    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class KvStoreUse:
    """What a store holds, as far as it knows. num_evictions: blobs that it deleted to make room, since it was built."""

    num_bytes: int = 0
    num_blobs: int = 0
    num_evictions: int = 0


class KvStoreImpl(Protocol):
    """Keeps blobs by key. Keys are of lowercase hexadecimal digits; equal keys mean equal content.

    It may lose any blob at any time. A blob that comes back changed is noticed by its checksum, and counts as missing.
    Called in several threads at once, none of which is that of the steps; a call that takes longer than the record's
    `timeout_s` is given up, and what it returns later is ignored.
    """

    def contains(self, keys: Sequence[str]) -> Sequence[bool]:
        """Whether it has a blob, for each key."""
        ...

    def get(self, key: str) -> bytes | None:
        """The blob, None if it is not there."""
        ...

    def put(self, key: str, blob: bytes, ttl_s: float | None) -> None:
        """Keep a blob, in the place of one with this key. ttl_s: it will not be wanted afterwards; None = no limit."""
        ...

    def remove(self, key: str) -> None:
        """Forget a blob, if it is there."""
        ...

    def use(self) -> KvStoreUse:
        """What it holds now; quick."""
        ...

    def close(self) -> None:
        """Free what it holds in this process; nothing is called afterwards."""
        ...


@dataclass(frozen=True)
class KvStore:
    """A place for KV pages, chosen by `store` of `--kv-store-config`.

    build: raises ConfigError for settings that are wrong. settings: the keys that it reads. timeout_s: longest wait for
    one call.
    """

    name: str
    build: Callable[[KvStoreContext], KvStoreImpl]
    settings: frozenset[str] = frozenset()
    timeout_s: float = 5.0

"""Reports about a model's adapters: for clients, for metrics, and for an engine process that restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

AdapterState = Literal["loading", "ready", "failed", "retired"]
AdapterTier = Literal["device", "host", "disk"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterInfo:
    """One adapter. `model`: the name of its base model. `path`: its folder.

    state: "retired" = running requests finish on it, new ones cannot name it. error: why it failed, or why it could not
    be reloaded. tier: where its weights are: in a slot of the device, in host memory, or on disk; None = not loaded
    yet. rank, num_bytes, targets, virtual_tokens, has_virtual_kv: as in `records.AdapterMetadata`, 0, () and False
    until loaded. num_requests: in flight; num_requests_total: since it was loaded. fingerprint: of the files that were
    loaded, see `quire.engine.adapters.folder`.
    """

    name: str
    model: str
    path: str
    revision: int = 0
    state: AdapterState = "loading"
    error: str | None = None
    tier: AdapterTier | None = None
    kind: str = ""
    rank: int = 0
    num_bytes: int = 0
    targets: tuple[str, ...] = ()
    virtual_tokens: int = 0
    has_virtual_kv: bool = False
    pinned: bool = False
    num_requests: int = 0
    num_requests_total: int = 0
    fingerprint: tuple[tuple[str, int, int, int], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterStats:
    """Statistics of a model's adapters: `num_…_total` since the start, the others now; bytes are in host memory.

    running, waiting: names of adapters whose requests run, or wait for a slot or for loading; only some if there are
    many. num_running: requests that hold a slot, by name of the adapter, of those in `running`.
    """

    max_slots: int = 0
    num_loaded: int = 0
    num_host: int = 0
    num_disk: int = 0
    num_bytes: int = 0
    num_loads_total: int = 0
    num_load_failures_total: int = 0
    num_reads_total: int = 0
    num_evictions_total: int = 0
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    num_running: Mapping[str, int] = field(default_factory=dict)

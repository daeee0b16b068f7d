"""What is told of a model's adapters: to clients, in metrics, and to a host process that starts anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AdapterState = Literal["loading", "ready", "failed", "retired"]
AdapterTier = Literal["seat", "host", "disk"]


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterInfo:
    """What is told of an adapter. `model`: the name of its base. `path`: its folder.

    state: retired = requests finish on it, new ones cannot name it. error: why it failed, or why it could not be
    loaded again. tier: where its weights are; None = not read yet. rank, num_bytes, targets: as
    `records.AdapterFacts` says, 0 and () until read. num_requests: in flight; num_requests_total: since it was loaded.
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
    pinned: bool = False
    num_requests: int = 0
    num_requests_total: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterStats:
    """Figures of a model's adapters: `num_…_total` since start, others of now; bytes are those in host memory.

    running, waiting: names of adapters with requests that run, or wait for a seat or to be read; some of them if many.
    """

    max_seats: int = 0
    num_seated: int = 0
    num_host: int = 0
    num_disk: int = 0
    num_bytes: int = 0
    num_loads_total: int = 0
    num_load_failures_total: int = 0
    num_reads_total: int = 0
    num_evictions_total: int = 0
    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

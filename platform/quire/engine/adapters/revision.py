"""The state of one revision of an adapter, and of one request that uses adapters.

The classes are plain data. `engine_adapters`, `registry`, `host_cache` and `admission` each change fields of their
own, all under one lock.

    loading ──read──▶ ready ──unloaded or replaced──▶ retired ──its last request ends──▶ removed
       └──cannot be read──▶ failed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.engine.adapters.attached_runtimes import AttachedRuntime
from quire.engine.adapters.folder import Fingerprint
from quire.errors import QuireError
from quire.records import AdapterMetadata
from quire.types import AdapterRef
from quire.types.adapter_info import AdapterInfo, AdapterState, AdapterTier


@dataclass(slots=True, eq=False)
class AdapterRevision:
    """One revision of an adapter.

    loaded: its weights, while they are in host memory. is_reading: a loader thread reads it. runtime, peft_type,
    metadata and fingerprint are set when it was read. error: why it cannot be read. reload_error: why it could not be
    replaced. num_active: requests that were accepted and have not ended. num_requests_total: all it ever had.
    holding_requests: ids of those for which it keeps its slot. slot: its current or last slot on the device.
    on_device: the slot still has its weights, whether a request uses them or not.
    """

    ref: AdapterRef
    path: Path
    pinned: bool = False
    state: AdapterState = "loading"
    error: QuireError | None = None
    reload_error: str | None = None
    runtime: AttachedRuntime | None = None
    loaded: Any = None
    is_reading: bool = False
    peft_type: str = ""
    metadata: AdapterMetadata | None = None
    fingerprint: Fingerprint | None = None
    num_active: int = 0
    num_requests_total: int = 0
    holding_requests: set[str] = field(default_factory=set)
    slot: int = -1
    on_device: bool = False

    @property
    def runtime_index(self) -> int:
        assert self.runtime is not None, "it was read"
        return self.runtime.runtime_index

    @property
    def tier(self) -> AdapterTier | None:
        """The fastest memory that has its weights; None if they were never read."""
        if self.on_device:
            return "device"
        if self.loaded is not None:
            return "host"
        return None if self.metadata is None else "disk"

    def info(self, model: str) -> AdapterInfo:
        """The public description. `model`: the name of the base model."""
        metadata = self.metadata or AdapterMetadata(num_bytes=0)
        return AdapterInfo(
            name=self.ref.name,
            model=model,
            path=str(self.path),
            revision=self.ref.revision,
            state=self.state,
            error=self.reload_error if self.error is None else self.error.message,
            tier=self.tier,
            kind=self.peft_type,
            rank=metadata.rank,
            num_bytes=metadata.num_bytes,
            targets=metadata.targets,
            virtual_tokens=metadata.virtual_tokens,
            has_virtual_kv=metadata.has_virtual_kv,
            pinned=self.pinned,
            num_requests=self.num_active,
            num_requests_total=self.num_requests_total,
            fingerprint=self.fingerprint or (),
        )


AdapterSet = tuple[AdapterRevision, ...]
"""The adapters of a request, in order of name. It gets slots for all of them or for none."""


@dataclass(slots=True, eq=False)
class AdapterRequest:
    """A request that uses adapters. arrival: its number among all such requests. holds_slots: it was admitted."""

    request_id: str
    arrival: int
    adapter_set: AdapterSet
    holds_slots: bool = False

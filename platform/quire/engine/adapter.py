"""Adapter: one revision of an adapter, and where it stands; Visit: one request that uses some.

They say what is; `adapters`, `residency` and `seats` change them, each its own fields, under one lock.

    loading ──read──▶ ready ──unloaded, or loaded again──▶ retired ──its last request ends──▶ gone
       └──cannot be read──▶ failed
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quire.adapter_info import AdapterInfo, AdapterState, AdapterTier
from quire.engine.adapter_folder import Fingerprint
from quire.engine.runtimes import Runtime
from quire.errors import QuireError
from quire.records import AdapterFacts
from quire.types import AdapterRef


@dataclass(slots=True, eq=False)
class Adapter:
    """One revision. Its weights are in `loaded` while they are in host memory; its runtime is known once it was read.

    num_users: requests accepted and not ended. holders: those that keep it on its seat. seat: where it sits, or
    sat last; sits: whether it still does, used or not. kind, facts, fingerprint: what reading it told. error: why it
    cannot be read. complaint: why it could not be replaced.
    """

    ref: AdapterRef
    path: Path
    pinned: bool = False
    state: AdapterState = "loading"
    error: QuireError | None = None
    complaint: str | None = None
    runtime: Runtime | None = None
    loaded: Any = None
    reading: bool = False
    kind: str = ""
    facts: AdapterFacts | None = None
    fingerprint: Fingerprint | None = None
    num_users: int = 0
    num_uses: int = 0
    holders: set[str] = field(default_factory=set)
    seat: int = -1
    sits: bool = False

    @property
    def lane(self) -> int:
        """Number of its runtime."""
        assert self.runtime is not None, "it was read"
        return self.runtime.lane

    @property
    def tier(self) -> AdapterTier | None:
        """Where its weights are; None when they were never read."""
        if self.sits:
            return "seat"
        if self.loaded is not None:
            return "host"
        return None if self.facts is None else "disk"

    def info(self, model: str) -> AdapterInfo:
        """What is told of it. `model`: its base."""
        facts = self.facts or AdapterFacts(num_bytes=0)
        return AdapterInfo(
            name=self.ref.name,
            model=model,
            path=str(self.path),
            revision=self.ref.revision,
            state=self.state,
            error=self.complaint if self.error is None else self.error.message,
            tier=self.tier,
            kind=self.kind,
            rank=facts.rank,
            num_bytes=facts.num_bytes,
            targets=facts.targets,
            pinned=self.pinned,
            num_requests=self.num_users,
            num_requests_total=self.num_uses,
        )


Party = tuple[Adapter, ...]
"""The adapters of a request, in order of name: they sit together or not at all."""


@dataclass(slots=True, eq=False)
class Visit:
    """A request that uses adapters. arrival: its number among all of them. begun: it holds their seats."""

    request_id: str
    arrival: int
    party: Party
    begun: bool = False

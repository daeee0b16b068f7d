"""What the leader tells its followers, in the order in which they do it, and what they answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from quire.engine.runner.sizes import RunnerSizes
from quire.records import AdapterMetadata, ReadsHidden, Registry
from quire.settings.model_config import ModelConfig
from quire.types import AdapterRef, Plan


@dataclass(frozen=True, kw_only=True)
class StartRank:
    """The first message: load a part of a model.

    threads: of a rank. whole_groups: see `quire_models.sharding.rank.Rank`. plugins, options: of the leader's registry,
    None = the follower has the registry itself.
    """

    config: ModelConfig
    rank: int
    size: int
    threads: int
    whole_groups: bool
    plugins: tuple[str, ...] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sys_path: tuple[str, ...] = ()
    log_level: int = 30

    def described(self, registry: Registry) -> StartRank:
        """The message for a process that must load the plugins of `registry` by their names."""
        return replace(
            self,
            plugins=tuple(info.name for info in registry.plugins),
            options={plugin: dict(values) for plugin, values in registry.options.items()},
            log_level=logging.getLogger().getEffectiveLevel(),
        )


@dataclass(frozen=True)
class EndRank:
    """The leader ends as it should: end too. error: why it could not start, None = it has served."""

    error: str | None


@dataclass(frozen=True)
class BuildRunner:
    """Allocate the caches. The answer is `RankReady`. reads: what a drafter reads, None = nothing."""

    sizes: RunnerSizes
    reads: ReadsHidden | None = None


@dataclass(frozen=True)
class PlacedAdapter:
    """An adapter that sequences of a plan use: which one, and its slot. runtime: index of its runtime."""

    handle: int
    runtime: int
    slot: int
    metadata: AdapterMetadata | None


@dataclass(frozen=True)
class RunPlan:
    """Compute a plan. number: of the plan, from 1. adapters: those that its new sequences use. by_rows: its rows are
    computed one by one, as `RunRow` says.
    """

    number: int
    plan: Plan
    adapters: Mapping[AdapterRef, PlacedAdapter]
    by_rows: bool = False


@dataclass(frozen=True)
class RunRow:
    """Compute a row of a plan by itself, because a stage could not compute the whole plan. number: as of a plan."""

    number: int
    plan: int
    row: int


@dataclass(frozen=True)
class EndRows:
    """All rows of a plan are computed, or have failed: go on with its logits. number: as of a plan."""

    number: int
    plan: int


@dataclass(frozen=True)
class ResetRunner:
    """Drop every sequence, as after a failed step."""


@dataclass(frozen=True)
class ReadAdapter:
    """Read an adapter, in another thread. The answer is `AdapterRead`."""

    handle: int
    runtime: int
    name: str
    path: Path


@dataclass(frozen=True)
class Addend:
    """A rank's part of a sum that reading an adapter needs. number: of the sum, from 0."""

    handle: int
    number: int
    values: Tensor


@dataclass(frozen=True)
class Total:
    """The sum of all `Addend` of a stage. first_rank: of the stage. error: there are no more sums for this adapter,
    because a rank cannot read it.
    """

    handle: int
    number: int = 0
    values: Tensor | None = None
    error: str | None = None
    first_rank: int = 0


@dataclass(frozen=True)
class AcquireSlot:
    """Give an adapter the slot that it has on the leader."""

    handle: int
    runtime: int
    slot: int


@dataclass(frozen=True)
class ReleaseSlot:
    """No sequence needs the adapter's slot."""

    handle: int
    runtime: int


@dataclass(frozen=True)
class ReleaseAdapter:
    """Free an adapter in host memory."""

    handle: int
    runtime: int


@dataclass(frozen=True)
class ComputeTables:
    """Take part in what a drafter on the leader asks of the embedding table or the LM head, which ranks have in parts.

    hidden: [rows, width], for logits; None = look up the rows of `ids`. number: as of a plan.
    """

    hidden: Tensor | None = None
    ids: Tensor | None = None
    number: int = 0


@dataclass(frozen=True)
class RankLoaded:
    """The rank has its weights, of so many bytes. digest: of the whole model, which must be equal on all ranks."""

    digest: str
    weight_bytes: int


@dataclass(frozen=True)
class RankReady:
    """The caches are allocated."""


@dataclass(frozen=True)
class Beat:
    """The process of a follower is alive; sent at intervals."""


@dataclass(frozen=True)
class RankFailed:
    """A follower cannot go on. is_startup: the reason is a setting or the model, as the message says."""

    message: str
    is_startup: bool


@dataclass(frozen=True)
class AdapterRead:
    """An adapter was read. error: why it cannot be used, None = it can."""

    handle: int
    error: str | None

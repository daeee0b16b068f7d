"""What `quire.engine.parallel.leader.Leader` is for a model with one rank."""

from __future__ import annotations

from quire.engine.adapters.attached_runtimes import AttachedRuntimes
from quire.engine.loading.load import LoadedModel
from quire.engine.memory.ledger import MemoryBudget, MemoryUse
from quire_models.sharding.model import WHOLE_MODEL


class OneRank:
    """There are no followers."""

    shard = WHOLE_MODEL
    has_failed = False

    def own_part(self, budget: MemoryBudget) -> MemoryBudget:
        return budget

    def for_caches(self, loaded: LoadedModel) -> LoadedModel:
        return loaded

    def of_all(self, use: MemoryUse) -> MemoryUse:
        return use

    def mirror(self, runtimes: AttachedRuntimes) -> None:
        """Do nothing: no other rank has adapters."""

    def for_drafter(self, loaded: LoadedModel) -> LoadedModel:
        return loaded

    def close(self) -> None:
        """Do nothing: there are no processes to end."""

"""What the models of an engine process may take together, if there is a budget or they come and go."""

from __future__ import annotations

import msgspec

UNPLANNED = 16
"""One part in so many of a budget is for what is not planned: activations, grammars, tokenizers, fragments."""


class MemoryPlan(msgspec.Struct, frozen=True):
    """budget: bytes of --memory-budget that the engine process may take, None = no limit of its own. num_models: models
    that share the memory, loaded or not, so that each gets the same whenever it is loaded; 0 = those that are loaded
    share what is free.
    """

    budget: int | None = None
    num_models: int = 0

    def divided(self, count: int) -> MemoryPlan:
        """The plan of each of `count` engine processes."""
        return self if self.budget is None else MemoryPlan(self.budget // count, self.num_models)

    def for_models(self, free: int, own: int) -> int:
        """Bytes for models. free: what the system has. own: what the process takes without models."""
        if self.budget is None:
            return free
        return max(0, min(free, self.budget - own - self.budget // UNPLANNED))

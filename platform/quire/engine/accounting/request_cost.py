"""Adds up what a request costs, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass

from quire.types.step import AcceptedDrafts, Chunk
from quire.types.usage import ComputeCost


@dataclass(slots=True, eq=False)
class RequestCost:
    """What a request has cost so far. Its share of a step's seconds is its share of the step's tokens."""

    device_s: float = 0.0
    num_drafted: int = 0
    num_accepted: int = 0

    def add(self, chunk: Chunk, accepted: AcceptedDrafts | None, token_s: float) -> None:
        """Count a chunk that was computed. token_s: seconds of its step for each token."""
        self.device_s += token_s * len(chunk.token_ids)
        if chunk.num_drafts:
            self.num_drafted += chunk.num_drafts
            self.num_accepted += accepted.num_drafts if accepted is not None else 0

    def so_far(self) -> ComputeCost:
        """The sums, for a delta."""
        return ComputeCost(self.device_s, self.num_drafted, self.num_accepted)

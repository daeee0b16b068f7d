"""Counts drafts and how many of them are right, for metrics."""

from __future__ import annotations

from quire.types import Plan, SpeculationStats, StepResult


class DraftCounts:
    """Of all sequences since the start. num_drafts: chunks that had drafted tokens."""

    def __init__(self) -> None:
        self.num_drafts = 0
        self._num_tokens = 0
        self._accepted: list[int] = []

    def add(self, plan: Plan, result: StepResult) -> None:
        """Count the drafts of a step."""
        for chunk in plan.chunks if result.accepted else ():
            accepted = result.accepted.get(chunk.seq_id)
            if accepted is None:
                continue
            self.num_drafts += 1
            self._num_tokens += chunk.num_drafts
            self._accepted += [0] * (chunk.num_drafts - len(self._accepted))
            for position in range(accepted.num_drafts):
                self._accepted[position] += 1

    def stats(self) -> SpeculationStats:
        return SpeculationStats(
            num_drafts_total=self.num_drafts,
            num_draft_tokens_total=self._num_tokens,
            num_accepted_per_position=tuple(self._accepted),
        )

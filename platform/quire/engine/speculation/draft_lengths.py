"""How many tokens to draft for a sequence."""

from __future__ import annotations

from collections.abc import Iterable

from quire.types import Plan, StepResult


class DraftLengths:
    """Lengths of drafts, at most `most`."""

    def __init__(self, most: int, adaptive: bool) -> None:
        self._most = most

    def length(self, seq_id: int, num_seqs: int) -> int:
        """Tokens to draft for a sequence when `num_seqs` generate. 0 = none."""
        return self._most

    def observe(self, plan: Plan, result: StepResult, seconds: float) -> None:
        """Learn from a step that took so many seconds."""

    def end(self, seq_ids: Iterable[int]) -> None:
        """Forget sequences."""

"""A plan under construction."""

from __future__ import annotations

from dataclasses import dataclass, field

from quire.types import Chunk, NewSeq


@dataclass(slots=True)
class PlanBuilder:
    """What is left for a plan, and what is in it.

    budget: tokens left. hard_budget: tokens left of --max-num-batched-tokens, for a medium that must be computed in one
    step. blocked: the next seq was not admitted for want of pages, budget or a place among the running seqs. shares:
    tokens left by client, if several clients want more than the budget. late: clients that were preempted in this step,
    and so come last. ahead: whether seqs in flight get chunks.
    """

    budget: int
    hard_budget: int
    ahead: bool
    shares: dict[str, int] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
    blocked: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    started: list[NewSeq] = field(default_factory=list)

"""The steps of an engine with drafts: how long each took, and what became of the drafts."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import thread_time
from typing import Any

from quire.types import Plan, Request, StepResult


@dataclass(frozen=True, slots=True)
class Step:
    """seconds: without those in the speculation, which are draft_s, of the processor. num_drafts: of its num_tokens."""

    num_tokens: int
    num_drafts: int
    seconds: float
    draft_s: float


@dataclass
class Turn:
    """Steps after the first tokens of all dialogues, and how many tokens they gave."""

    num_tokens: int
    seconds: float
    steps: list[Step]

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.seconds


def rate_by_steps(turns: Sequence[Turn]) -> float:
    """Tokens per second if each step takes the median of its kind, beside its time in the speculation."""
    kinds: dict[tuple[int, bool], list[float]] = defaultdict(list)
    for turn in turns:
        for step in turn.steps:
            kinds[step.num_tokens, step.num_drafts > 0].append(step.seconds)
    seconds = sum(len(each) * statistics.median(each) for each in kinds.values())
    draft_s = sum(step.draft_s for turn in turns for step in turn.steps)
    return sum(turn.num_tokens for turn in turns) / (seconds + draft_s)


@dataclass
class Watched:
    """The speculation of an engine, and what became of its drafts.

    verified, accepted: drafts by position. num_steps: of all; num_drafted: of those with drafts. propose_s, observe_s:
    in seconds of the processor, which other programs do not prolong. num_tokens, num_drafts: of the latest step.
    """

    speculation: Any
    verified: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)
    num_steps: int = 0
    num_drafted: int = 0
    propose_s: float = 0.0
    observe_s: float = 0.0
    num_tokens: int = 0
    num_drafts: int = 0

    @property
    def is_used(self) -> bool:
        return bool(self.speculation.is_used)

    def add(self, request: Request) -> None:
        self.speculation.add(request)

    def propose(self, *args: Any) -> Any:
        begin = thread_time()
        drafts = self.speculation.propose(*args)
        self.propose_s += thread_time() - begin
        return drafts

    def observe(self, plan: Plan, result: StepResult, *seconds: float) -> None:
        self.num_steps += 1
        self.num_tokens, self.num_drafts = plan.num_tokens, sum(chunk.num_drafts for chunk in plan.chunks)
        self.num_drafted += self.num_drafts > 0
        for chunk in plan.chunks if self.num_drafts else ():
            self.verified.update(range(chunk.num_drafts))
            if chunk.seq_id in result.accepted:
                self.accepted.update(range(result.accepted[chunk.seq_id].num_drafts))
        begin = thread_time()
        self.speculation.observe(plan, result, *seconds)
        self.observe_s += thread_time() - begin

    def summary(self) -> str:
        drafts, accepted = sum(self.verified.values()), sum(self.accepted.values())
        shares = [f"{100 * self.accepted[i] / self.verified[i]:.0f}" for i in sorted(self.verified)]
        return (
            f"{self.num_drafted} of {self.num_steps} steps with drafts, {drafts / max(1, self.num_steps):.2f} drafts a "
            f"step, {100 * accepted / max(1, drafts):.0f} % accepted; by position: {' '.join(shares)} %; "
            f"propose {1e6 * self.propose_s / max(1, self.num_steps):.0f} µs a step, "
            f"observe {1e6 * self.observe_s / max(1, self.num_steps):.0f} µs"
        )

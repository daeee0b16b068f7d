"""How many tokens to draft for each sequence, by the acceptance and the cost of rows that were measured.

A step of N sequences yields on average N + Σ a + a² + … + a^k tokens, where a is the acceptance of a sequence and k its
drafts, and takes the time of its rows. Tokens per second are highest if a row is added exactly when its gain a^j is at
least λ · m: λ is the highest rate itself, for which the measured one stands, and m the seconds that one more row
takes (Dinkelbach, "On nonlinear fractional programming", 1967).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.engine.speculation.row_costs import RowCosts
from quire.types import Plan, StepResult

DECAY, AVERAGE_DECAY = 0.9, 0.99
"""Of the counts of a sequence, and of all together, with each chunk that has drafts."""
PRIOR = 2.0
"""Drafts of the average acceptance that a sequence begins with."""
FIRST_GUESS = 0.7
"""Acceptance before anything was drafted."""
PROBE_EVERY = 16
"""Steps between drafts of one token for a sequence whose drafts are not worth their time; doubled by each of them that
is wrong."""
MOST_DOUBLED = 3
PLAIN_EVERY = 64
"""Steps between two that have no drafts, to measure what drafts cost."""
PROBE_SHARE = 0.01
"""Share of time that probes may take."""


@dataclass(slots=True)
class _Acceptance:
    """Of one sequence. accepted, tested: drafts, decayed. num_idle: steps since the last with drafts. num_wrong: chunks
    since the last with a right draft."""

    accepted: float = 0.0
    tested: float = 0.0
    num_idle: int = 0
    num_wrong: int = 0

    def add(self, accepted: int, tested: int, decay: float) -> None:
        self.accepted = decay * self.accepted + accepted
        self.tested = decay * self.tested + tested
        self.num_idle = 0
        self.num_wrong = 0 if accepted else self.num_wrong + 1

    def rate(self, average: float) -> float:
        rate = (self.accepted + PRIOR * average) / (self.tested + PRIOR)
        return min(max(rate, 0.01), 0.99)


class DraftLengths:
    """Lengths of drafts, at most `most`; always that if not `adaptive`."""

    def __init__(self, most: int, adaptive: bool) -> None:
        self._most, self._adaptive = most, adaptive
        self._costs = RowCosts()
        self._seqs: dict[int, _Acceptance] = {}
        self._all = _Acceptance()
        self._num_drafted_steps = 0

    def choose(self, seq_ids: Sequence[int]) -> list[int]:
        """Tokens to draft for each sequence of the next step; these are all that generate. 0 = none."""
        if not self._adaptive:
            return [self._most] * len(seq_ids)
        if self._num_drafted_steps >= PLAIN_EVERY or not self._costs.is_known(len(seq_ids)):
            self._num_drafted_steps = 0
            return [0] * len(seq_ids)
        least = self._costs.least_gain(len(seq_ids))
        if least >= 1:
            return [0] * len(seq_ids)
        most = min(self._most, self._costs.most_rows // len(seq_ids))
        interval = max(PROBE_EVERY, math.ceil(self._costs.share_of_rows(len(seq_ids)) / PROBE_SHARE))
        average = self._all.rate(FIRST_GUESS)
        return [min(self._length(seq_id, least, average, interval), most) for seq_id in seq_ids]

    def _length(self, seq_id: int, least: float, average: float, interval: int) -> int:
        seq = self._seqs.setdefault(seq_id, _Acceptance())
        length = int(math.log(max(least, 1e-9)) / math.log(seq.rate(average)))
        if length == 0:
            seq.num_idle += 1
            length = int(seq.num_idle >= interval << min(seq.num_wrong, MOST_DOUBLED))
        return length

    def observe(self, plan: Plan, result: StepResult, draft_s: float, step_s: float) -> None:
        """Learn from a step that took `step_s` seconds after its drafts had taken `draft_s`."""
        if not self._adaptive:
            return
        num_drafts = 0
        for chunk in plan.chunks:
            accepted = result.accepted.get(chunk.seq_id)
            if accepted is None:
                continue
            num_drafts += chunk.num_drafts
            tested = min(accepted.num_drafts + 1, chunk.num_drafts)
            self._seqs.setdefault(chunk.seq_id, _Acceptance()).add(accepted.num_drafts, tested, DECAY)
            self._all.add(accepted.num_drafts, tested, AVERAGE_DECAY)
        self._num_drafted_steps += num_drafts > 0
        num_rows = len(plan.chunks)
        if plan.num_tokens == num_rows + num_drafts and num_rows == len(result.samples) > 0:
            num_new = num_rows + sum(len(each.samples) for each in result.accepted.values())
            self._costs.observe(num_rows, num_drafts, num_new, draft_s, step_s)

    def end(self, seq_ids: Iterable[int]) -> None:
        """Forget what was measured of sequences."""
        for seq_id in seq_ids:
            self._seqs.pop(seq_id, None)

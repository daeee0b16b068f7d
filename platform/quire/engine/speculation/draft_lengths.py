"""How many tokens to draft for each sequence, by the acceptance and the cost of rows that were measured.

A step of N sequences yields on average N + Σ a + a² + … + a^k tokens, where a is the acceptance of a sequence and k its
drafts, and takes the time of its rows. Tokens per second are highest if a row is added exactly when its gain a^j is
at least λ · m: λ is the highest rate itself, for which that of the last step stands, and m the seconds that one more
row takes (Dinkelbach, "On nonlinear fractional programming", 1967). Without drafts a step also saves what drafting
takes at least, so the lengths found this way are used only if their rate is above that of a step without drafts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.engine.speculation.row_costs import FIRST_ROWS, CostCurve
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

    def probes(self, interval: int) -> int:
        """Count a step without drafts. 1 if the next one should draft a token, which is at most every `interval`."""
        self.num_idle += 1
        return int(self.num_idle >= interval << min(self.num_wrong, MOST_DOUBLED))

    def rate(self, average: float) -> float:
        rate = (self.accepted + PRIOR * average) / (self.tested + PRIOR)
        return min(max(rate, 0.01), 0.99)


class DraftLengths:
    """Lengths of drafts, at most `most`; always that if not `adaptive`."""

    def __init__(self, most: int, adaptive: bool) -> None:
        self._most, self._adaptive = most, adaptive
        self._plain, self._drafted = CostCurve(), CostCurve()
        self._seqs: dict[int, _Acceptance] = {}
        self._all = _Acceptance()
        self._num_drafted_steps = 0
        self._rate, self._num_seqs = 0.0, 0  # tokens per second that the last lengths promised, for so many sequences

    def choose(self, seq_ids: Sequence[int]) -> list[int]:
        """Tokens to draft for each sequence of the next step; these are all that generate. 0 = none."""
        if not self._adaptive or not seq_ids:
            return [self._most] * len(seq_ids)
        num_seqs = len(seq_ids)
        if self._num_drafted_steps >= PLAIN_EVERY or not self._plain.is_known(num_seqs):
            self._num_drafted_steps = 0
            return [0] * num_seqs
        average = self._all.rate(FIRST_GUESS)
        seqs = [self._seqs.get(seq_id) or self._seqs.setdefault(seq_id, _Acceptance()) for seq_id in seq_ids]
        rates = [seq.rate(average) for seq in seqs]
        lengths = self._best(rates)
        if not all(lengths):
            interval = max(PROBE_EVERY, math.ceil(self._share_of_probes(num_seqs) / PROBE_SHARE))
            lengths = [length or seq.probes(interval) for seq, length in zip(seqs, lengths, strict=True)]
        return lengths

    def _best(self, rates: Sequence[float]) -> list[int]:
        """The lengths of highest rate for sequences of these acceptances; all 0 if drafts are not worth their time."""
        num_seqs, plain = len(rates), len(rates) / self._plain.at(len(rates))
        most = min(self._most, max(self._drafted.most_rows, num_seqs, FIRST_ROWS) // num_seqs)
        rate = max(plain, self._rate if num_seqs == self._num_seqs else 0.0)
        least = rate * self._drafted.slope(num_seqs + 1, num_seqs * (1 + self._most))
        limit = math.log(min(max(least, 1e-9), 1.0))
        lengths = [min(int(limit / math.log(rate)), most) for rate in rates]
        num_drafts = sum(lengths)
        if num_drafts == 0 or not self._drafted.most_rows:
            return lengths
        gains = sum(rate * (1 - rate**length) / (1 - rate) for rate, length in zip(rates, lengths, strict=True))
        self._rate, self._num_seqs = (num_seqs + gains) / self._drafted.at(num_seqs + num_drafts), num_seqs
        return lengths if self._rate > plain else [0] * num_seqs

    def _share_of_probes(self, num_seqs: int) -> float:
        """Time that drafts of one token for each sequence add to a step, over that of a step without."""
        if not self._drafted.most_rows:
            return 0.0
        return self._drafted.at(2 * num_seqs) / self._plain.at(num_seqs) - 1

    def observe(self, plan: Plan, result: StepResult, draft_s: float, step_s: float) -> None:
        """Learn from a step that took `step_s` seconds after its drafts had taken `draft_s`."""
        if not self._adaptive:
            return
        num_drafts, are_first = 0, False
        for chunk in plan.chunks:
            accepted = result.accepted.get(chunk.seq_id)
            if accepted is None:
                continue
            num_drafts += chunk.num_drafts
            tested = min(accepted.num_drafts + 1, chunk.num_drafts)
            seq = self._seqs.setdefault(chunk.seq_id, _Acceptance())
            are_first = are_first or not seq.tested  # a drafter may have read the prompt, which takes longer
            seq.add(accepted.num_drafts, tested, DECAY)
            self._all.add(accepted.num_drafts, tested, AVERAGE_DECAY)
        self._num_drafted_steps += num_drafts > 0
        num_rows = len(plan.chunks)
        if plan.num_tokens == num_rows + num_drafts and num_rows == len(result.samples) > 0 and not are_first:
            curve = self._drafted if num_drafts else self._plain
            curve.add(plan.num_tokens, draft_s + step_s)

    def end(self, seq_ids: Iterable[int]) -> None:
        """Forget what was measured of sequences."""
        for seq_id in seq_ids:
            self._seqs.pop(seq_id, None)

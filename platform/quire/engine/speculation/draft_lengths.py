"""How many tokens to draft for each sequence, by the acceptance and the cost of rows that were measured.

A step of N sequences yields on average N + Σ a + a² + … + a^k tokens, where a is the acceptance of a sequence and k its
drafts, and takes the time of its rows. For a given number of drafts the yield is highest if those with the highest
gains a^j are taken, that is, all above a limit: the limit of the highest yield per second is chosen among a few, again
every few steps. Without drafts a step also saves what the drafter takes at least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quire.engine.speculation.draft_chances import DraftChances
from quire.engine.speculation.row_costs import FIRST_ROWS, CostCurve, StepCosts
from quire.records import Draft
from quire.types import Plan, StepResult

DECAY, AVERAGE_DECAY = 0.9, 0.99
"""Of the counts of a sequence, and of all together, with each chunk that has drafts."""
PRIOR = 4.0
"""Drafts of the average acceptance that a sequence begins with."""
FIRST_GUESS = 0.7
"""Acceptance before anything was drafted."""
PROBE_EVERY = 16
"""Steps between drafts of one token for a sequence whose drafts are not worth their time; doubled by each of them that
is wrong."""
MAX_DOUBLED = 3
PATIENCE, MAX_WAITS = 4, 8
"""Calls without drafts after which a drafter is asked less often for a sequence, and most steps between two."""
PLAIN_EVERY = 64
"""Steps between two that have no drafts, to measure what drafts cost."""
RETRIED_AFTER, MAX_RETRIED_AFTER = 512, 4096
"""Steps without drafts after which their costs are measured anew, since something else may have made them long; doubled
each time."""
RECONSIDERED_EVERY = 8
"""Steps between two choices of the limit."""
LIMITS = tuple(math.log(gain) for gain in (0.8, 0.65, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02))
CHANCES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.42, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.02)
LIMITS_OF_CHANCES = tuple(map(math.log, CHANCES))
NEARLY = 0.97
"""Of the highest speed, at which longer drafts are preferred: times are not known more exactly."""
NO_DRAFTS = 0.0
PROBE_SHARE = 0.01
"""Share of time that probes may take."""


@dataclass(slots=True)
class _Acceptance:
    """Of one sequence. accepted, tested: drafts, decayed. num_idle: steps since the last with drafts. num_wrong: chunks
    since the last with a right draft. num_empty: calls of the drafter since it had a draft. num_waits: steps since the
    last call."""

    accepted: float = 0.0
    tested: float = 0.0
    num_idle: int = 0
    num_wrong: int = 0
    num_empty: int = 0
    num_waits: int = 0

    def add(self, accepted: int, tested: int, decay: float) -> None:
        self.accepted = decay * self.accepted + accepted
        self.tested = decay * self.tested + tested
        self.num_idle = self.num_empty = 0
        self.num_wrong = 0 if accepted else self.num_wrong + 1

    def probes(self, interval: int, num_steps: int) -> int:
        """Count steps without drafts. 1 if the next one should draft a token, which is at most every `interval`."""
        self.num_idle += num_steps
        return int(self.num_idle >= interval << min(self.num_wrong, MAX_DOUBLED))

    def waits(self) -> bool:
        """Whether the drafter, which had no draft several times, is not asked in this step."""
        if self.num_empty < PATIENCE:
            return False
        self.num_waits = (self.num_waits + 1) % min(self.num_empty, MAX_WAITS)
        return self.num_waits > 0

    def rate(self, average: float) -> float:
        rate = (self.accepted + PRIOR * average) / (self.tested + PRIOR)
        return min(max(rate, 0.01), 0.99)


class DraftLengths:
    """Lengths of drafts, at most `most`; always that if not `adaptive`. measures: whether the step has no drafts only
    because its time is measured."""

    def __init__(self, most: int, adaptive: bool) -> None:
        self._most, self.adaptive, self.measures = most, adaptive, False
        self._costs = StepCosts()
        self._seqs: dict[int, _Acceptance] = {}
        self._all = _Acceptance()
        self._chances, self._verified = DraftChances(CHANCES), dict[int, Sequence[float]]()  # of drafts, by seq id
        self._num_drafted_steps, self._interval = 0, PROBE_EVERY
        self._num_without, self._retried_after = 0, RETRIED_AFTER  # steps since the costs of drafts were forgotten
        self._chosen, self._known, self._num_steps = (NO_DRAFTS, 0), (0, 0, 0), 0  # limits, by what, for so many steps

    def choose(self, seq_ids: Sequence[int], most: int | None = None, num_steps: int = 1) -> list[int]:
        """Tokens to draft for each sequence of the next step; these are all that generate. 0 = none.

        most: a limit below that of all steps. num_steps: steps since the last call.
        """
        num_seqs, most = len(seq_ids), min(most or self._most, self._most)
        if not self.adaptive or not seq_ids:
            return [most] * num_seqs
        self.measures = self._num_drafted_steps >= PLAIN_EVERY or not self._costs.plain.is_known(num_seqs)
        if self.measures:
            if self._num_drafted_steps >= PLAIN_EVERY:  # drafts are worth their time
                self._retried_after = RETRIED_AFTER
            self._num_drafted_steps = 0
            return [0] * num_seqs
        average = self._all.rate(FIRST_GUESS)
        seqs = [self._seqs.get(seq_id) or self._begin(seq_id) for seq_id in seq_ids]
        rates = [math.log(seq.rate(average)) for seq in seqs]
        limits = self._limits(rates, most)
        if limits[0] == NO_DRAFTS:
            self._count_without(num_steps)
        if self._chances.are_given:  # the whole drafts, which `cut` shortens
            lengths = [most if limits[0] < NO_DRAFTS else 0] * num_seqs
        else:
            lengths = _lengths(rates, *limits)
        if self._chances.are_given or not all(lengths):  # else nothing reads it
            self._interval = max(PROBE_EVERY, math.ceil(self._share_of_probes(num_seqs) / PROBE_SHARE))
        return [
            0 if seq.waits() else length or seq.probes(self._interval, num_steps)
            for seq, length in zip(seqs, lengths, strict=True)
        ]

    def _begin(self, seq_id: int) -> _Acceptance:
        """Of a new sequence, whose first probe comes later where the last drafts of all were wrong."""
        self._seqs[seq_id] = _Acceptance(num_wrong=min(self._all.num_wrong, 1))
        return self._seqs[seq_id]

    def _count_without(self, num_steps: int) -> None:
        """Count steps in which drafts are not worth their time, and forget that time after many of them."""
        self._num_without += num_steps
        if self._num_without >= self._retried_after:
            self._costs.drafted, self._known, self._num_without = CostCurve(), (0, 0, 0), 0
            self._retried_after = min(2 * self._retried_after, MAX_RETRIED_AFTER)

    def cut(self, seq_id: int, draft: Draft) -> Draft:
        """The drafts that are worth their time, by their chances, else by the acceptance of the sequence; all of them
        while no draft had chances: then `choose` decides."""
        chances, seq = draft.chances, self._seqs.get(seq_id)
        if chances:
            self._chances.add(chances)
        if not self.adaptive or not self._chances.are_given or seq is None:
            return draft
        limit, most = self._chosen
        if limit == NO_DRAFTS:
            length = 1  # `choose` asked for one
        elif chances:
            length = min(self._chances.length(chances, math.exp(limit)), most)
        else:
            (length,) = _lengths([math.log(seq.rate(self._all.rate(FIRST_GUESS)))], limit, most)
        length = length or seq.probes(self._interval, 1)
        self._verified[seq_id] = chances[:length]
        return Draft(draft.token_ids[:length], None if draft.probs is None else draft.probs[:length], chances[:length])

    def _limits(self, rates: Sequence[float], most: int) -> tuple[float, int]:
        """The limit of gains, and of lengths, for sequences of these acceptances; chosen again if the number of
        sequences changes or steps of more rows are known."""
        self._num_steps += 1
        known = len(rates), self._costs.drafted.most_rows, most
        if self._num_steps >= RECONSIDERED_EVERY or known != self._known:
            if not (self._chances.are_given and self._costs.drafted.most_rows):
                most = min(most, max(2 * self._costs.drafted.most_rows, len(rates), FIRST_ROWS) // len(rates))
            self._chosen = self._best_limit(rates, most), most
            self._known, self._num_steps = known, 0
        return self._chosen

    def _best_limit(self, rates: Sequence[float], most: int) -> float:
        """The logarithm of the limit with the most tokens per second. rates: logarithms of acceptances."""
        num_seqs, plain_s = len(rates), self._costs.plain.at(len(rates))
        speeds: dict[float, float] = {}
        limits = LIMITS_OF_CHANCES if self._chances.are_given else LIMITS
        for i, limit in enumerate(limits):
            if self._chances.are_given:
                num_drafts, gain = (num_seqs * each for each in self._chances.of_limit(i))
            else:
                lengths = _lengths(rates, limit, most)
                num_drafts, gain = sum(lengths), _gain(rates, lengths)
            if num_drafts > 0 and not self._costs.drafted.most_rows:
                return limits[-1] if self._chances.are_given else limit
            seconds = (
                self._costs.drafted.beyond(num_seqs + num_drafts, num_seqs, plain_s) if num_drafts > 0 else plain_s
            )
            speeds[limit] = (num_seqs + gain) / seconds
        least = max(num_seqs / plain_s, NEARLY * max(speeds.values()))
        return min((limit for limit, speed in speeds.items() if speed > least), default=NO_DRAFTS)

    def _share_of_probes(self, num_seqs: int) -> float:
        """Time that drafts of one token for each sequence add to a step, over that of a step without."""
        if not self._costs.drafted.most_rows:
            return 0.0
        return self._costs.drafted.at(2 * num_seqs) / self._costs.plain.at(num_seqs) - 1

    def observe(self, plan: Plan, result: StepResult, draft_s: float, step_s: float) -> None:
        """Learn from a step that took `step_s` seconds after its drafts had taken `draft_s`."""
        if not self.adaptive:
            return
        num_drafts, are_first = 0, False
        for chunk in plan.chunks:
            accepted = result.accepted.get(chunk.seq_id)
            if accepted is None:
                continue
            num_drafts += chunk.num_drafts
            tested = min(accepted.num_drafts + 1, chunk.num_drafts)
            seq = self._seqs.get(chunk.seq_id) or self._begin(chunk.seq_id)
            are_first = are_first or not seq.tested  # a drafter may have read the prompt, which takes longer
            seq.add(accepted.num_drafts, tested, DECAY)
            if chances := self._verified.pop(chunk.seq_id, ()):
                self._chances.add_result(accepted.num_drafts, chances[: chunk.num_drafts])
            self._all.add(accepted.num_drafts, tested, AVERAGE_DECAY)
        self._num_drafted_steps += num_drafts > 0
        num_rows = len(plan.chunks)
        if plan.num_tokens == num_rows + num_drafts and num_rows == len(result.samples) > 0 and not are_first:
            self._costs.add(plan.num_tokens, num_drafts > 0, draft_s + step_s)

    def count_empty(self, seq_ids: Iterable[int]) -> None:
        """The drafter was asked for these sequences and had no drafts."""
        for seq_id in seq_ids:
            if self._chances.are_given:
                self._chances.add(())
            if (seq := self._seqs.get(seq_id)) is not None:
                seq.num_empty += 1

    def end(self, seq_ids: Iterable[int]) -> None:
        """Forget what was measured of sequences."""
        for seq_id in seq_ids:
            self._seqs.pop(seq_id, None)
            self._verified.pop(seq_id, None)


def _lengths(rates: Sequence[float], limit: float, most: int) -> list[int]:
    """Tokens whose gain is at least a limit. rates, limit: logarithms."""
    return [min(int(limit / rate), most) for rate in rates]


def _gain(rates: Sequence[float], lengths: Sequence[int]) -> float:
    """Tokens that drafts of these lengths add on average. rates: logarithms."""
    gain = 0.0
    for rate, length in zip(rates, lengths, strict=True):
        acceptance = math.exp(rate)
        gain += acceptance * (1 - acceptance**length) / (1 - acceptance)
    return gain

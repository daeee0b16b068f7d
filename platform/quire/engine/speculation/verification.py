"""Verifies drafts: a draft is accepted if it is the token that is sampled in its place.

Each token is drawn with the random number of its seed and position, from logits that the same edits, penalties,
processors and grammar changed as in a step without drafts. So output does not depend on drafts, nor on the drafter;
unless an `Acceptance` chooses the tokens, which looks at the drafts.

The first token of every sequence is sampled, then the second of those whose first draft was right, and so on: there
are as many calls of the sampler as the luckiest sequence has new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from torch import Tensor

from quire.engine.sampling.sampler import Draw, Sampler, SamplingState
from quire.engine.speculation.acceptance import Acceptance, NextDraft
from quire.engine.structured.constraint_tracker import PendingBitmask
from quire.types import AcceptedDrafts, Sample

SampleRows = Callable[[list[int], Sequence[SamplingState], Sequence[NextDraft | None], bool], list[Sample]]
"""Samples after these rows of logits, for these states with these drafts; the last argument is true in the first call.
"""
Verified = tuple[list[Sample], list[AcceptedDrafts | None]]
"""The first sample of each sequence, and what its drafts add to it: None without drafts; [] if no sequence has any."""


@dataclass(slots=True)
class _Progress:
    """Of one sequence. row: of its first logits. probs: of its drafts. tokens: those that its samples appended; the
    first `num_accepted` of them are drafts."""

    row: int
    drafts: Sequence[int]
    probs: Tensor | None
    samples: list[Sample] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    num_accepted: int = 0

    def append(self, sample: Sample) -> bool:
        """Whether every token so far was drafted, so that the next one can be sampled."""
        self.samples.append(sample)
        if sample.error is not None or sample.constraint_done:
            return False
        self.tokens += (sample.token_id, *sample.jump_forward_ids)
        while self.num_accepted < min(len(self.tokens), len(self.drafts)):
            if self.tokens[self.num_accepted] != self.drafts[self.num_accepted]:
                return False
            self.num_accepted += 1
        return self.num_accepted == len(self.tokens)

    @property
    def next_draft(self) -> NextDraft | None:
        i, probs = self.num_accepted, self.probs
        if i >= len(self.drafts):
            return None
        return NextDraft(self.drafts[i], probs[i] if probs is not None and i < len(probs) else None)

    @property
    def accepted(self) -> AcceptedDrafts:
        return AcceptedDrafts(tuple(self.samples[1:]), self.num_accepted)


def verify_argmax(
    sampler: Sampler, tokens: list[int], states: Sequence[SamplingState], drafts: Sequence[Sequence[int]]
) -> Verified:
    """For plain greedy sequences. tokens: the argmax of the last token of each and of its drafts, -1 where none is."""
    if not drafts:
        return sampler.from_argmax(tokens, states), []
    first, accepted, row = list[Sample](), list[AcceptedDrafts | None](), 0
    for state, its_drafts in zip(states, drafts, strict=True):
        end, num_right = row + len(its_drafts), 0
        while row + num_right < end and tokens[row + num_right] == its_drafts[num_right]:
            num_right += 1
        kept = tokens[row : row + num_right + 1]
        sample, *more = sampler.from_argmax(kept, [state] * len(kept))
        first.append(sample)
        accepted.append(AcceptedDrafts(tuple(more), num_right) if its_drafts else None)
        row = end + 1
    return first, accepted


def verify(
    sampler: Sampler,
    logits: Tensor,
    states: Sequence[SamplingState],
    masks: PendingBitmask | None,
    drafts: Sequence[Sequence[int]],
    probs: Sequence[Tensor | None] = (),
    acceptance: Acceptance | None = None,
) -> Verified:
    """logits: [rows, vocab] float32, after the last token of each sequence and after each of its drafts; they may be
    overwritten. masks: of the first row of each. probs: of the drafts of each, [drafts, vocab] or fewer rows."""

    def choose(given: Sequence[NextDraft | None]) -> Draw | None:
        if acceptance is None:
            return None
        return lambda changed, rows: acceptance.choose(changed, rows, given, sampler.draw)

    if not drafts:
        return sampler.sample(logits, states, masks, choose([None] * len(states))), []

    def sample(
        rows: list[int], ongoing: Sequence[SamplingState], given: Sequence[NextDraft | None], is_first: bool
    ) -> list[Sample]:
        chosen = logits[torch.tensor(rows, device=logits.device)]
        return sampler.sample(chosen, ongoing, masks if is_first else sampler.start_masks(ongoing), choose(given))

    return _verify(sample, states, drafts, probs)


def _verify(
    sample: SampleRows,
    states: Sequence[SamplingState],
    drafts: Sequence[Sequence[int]],
    probs: Sequence[Tensor | None],
) -> Verified:
    every, row = [], 0
    for each, its_probs in zip_longest(drafts, probs):
        every.append(_Progress(row, each, its_probs))
        row += 1 + len(each)
    ongoing, is_first = list(zip(every, states, strict=True)), True
    while ongoing:
        rows = [progress.row + progress.num_accepted for progress, _ in ongoing]
        given = [progress.next_draft for progress, _ in ongoing]
        samples = sample(rows, [state for _, state in ongoing], given, is_first)
        goes_on = [progress.append(found) for (progress, _), found in zip(ongoing, samples, strict=True)]
        ongoing, is_first = [each for each, goes in zip(ongoing, goes_on, strict=True) if goes], False
    samples = [progress.samples[0] for progress in every]
    return samples, [progress.accepted if progress.drafts else None for progress in every]

"""Chooses a token for each row of logits, as its request asks. Batched; rows never influence each other.

Order of what happens to a row:
    logprobs (of the model's own distribution, before any change)
    → allowed_token_ids, bad_words, min_tokens, logit_bias → repetition, frequency, presence penalty
    → plugin processors → grammar mask → temperature (0: take the largest) → top_k → top_p → min_p → draw

What no row asks for costs nothing; a batch that asks for nothing is one `argmax`. It knows no request ids,
no pages and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from quire.engine.chance import uniforms
from quire.engine.constraints import Constraint, Constraints, Masks
from quire.engine.logits import Edits, apply_edits
from quire.engine.logprobs import describe
from quire.engine.no_token import no_token_error
from quire.engine.not_finite import NOT_FINITE
from quire.engine.processors import Processors, Use
from quire.errors import QuireError, Told
from quire.sampling import BeamSearchParams, SamplingParams
from quire.types import Sample, TokenLogprobs
from quire_kernels.sampling import Logprobs
from quire_kernels.select import Ops

_MASK64 = (1 << 64) - 1
_MAX_TOP_K = 2**31  # no vocabulary is that large
_COLDEST = float(np.finfo(np.float32).tiny)  # what float32 can divide by
_GREEDY = (0.0, 0.0, 1.0, 0.0)


@dataclass(slots=True, eq=False)
class Chooser:
    """How one seq's tokens are chosen: its parameters made ready, and what must follow its output.

    output_ids: the tokens generated so far; only `note` adds to it. error: why it cannot be sampled.
    settings: temperature, top_k, top_p, min_p. jumps: whether tokens that its constraint forces are taken unseen, for
    nobody asks what the model thinks of them, and nothing else could forbid them.
    """

    params: SamplingParams | BeamSearchParams
    seed: int
    output_ids: list[int]
    edits: Edits | None = None
    uses: tuple[Use, ...] = ()
    constraint: Constraint | None = None
    error: Told | None = None
    plain: bool = field(init=False)
    beam: bool = field(init=False)
    num_logprobs: int | None = field(init=False)
    jumps: bool = field(init=False)
    settings: tuple[float, float, float, float] = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        self.seed &= _MASK64
        self.beam = isinstance(params, BeamSearchParams)
        self.num_logprobs = _num_logprobs(params)
        self.settings = _settings(params)
        asks = self.edits or self.uses or self.constraint or self.error or self.num_logprobs is not None
        forbids = bool(self.uses) or (self.edits is not None and self.edits.forbids)
        self.jumps = self.constraint is not None and not (self.beam or forbids or self.num_logprobs is not None)
        self.plain = not self.beam and params.temperature == 0 and not asks

    @property
    def changes(self) -> bool:
        """Whether its logits are changed before a token is chosen."""
        return self.edits is not None or bool(self.uses) or self.constraint is not None

    def note(self, token: int) -> None:
        """The seq has a new output token."""
        self.output_ids.append(token)
        if self.edits is not None:
            self.edits.note(token)


def _num_logprobs(params: SamplingParams | BeamSearchParams) -> int | None:
    """Alternatives to report; 0 where only the sums matter, to tell the best of several seqs."""
    if not isinstance(params, SamplingParams):
        return None
    if params.logprobs is None and params.num_seqs > params.n:
        return 0
    return params.logprobs


def _settings(params: SamplingParams | BeamSearchParams) -> tuple[float, float, float, float]:
    """`Chooser.settings`. A beam's token is the most likely one."""
    if not isinstance(params, SamplingParams) or params.greedy:
        return _GREEDY
    return params.temperature, min(params.top_k, _MAX_TOP_K), params.top_p, params.min_p


class Sampler:
    """One per model; holds nothing of any seq."""

    def __init__(self, processors: Processors, constraints: Constraints, ops: Ops) -> None:
        self._processors = processors
        self._constraints = constraints
        self._ops = ops

    def tell(self, row: Chooser, tokens: Sequence[int]) -> None:
        """Tokens that were chosen for a seq elsewhere."""
        for token in tokens:
            row.note(token)
        if row.constraint is not None and row.error is None:
            try:
                self._constraints.catch_up(row.constraint, row.output_ids)
            except QuireError as error:
                row.error = error.told

    def masks(self, rows: Sequence[Chooser]) -> Masks | None:
        """Begin to fill the masks of the rows that are constrained, while their logits are computed."""
        return self._constraints.begin([(i, row.constraint) for i, row in enumerate(rows) if row.constraint])

    def sample(self, logits: Tensor, rows: Sequence[Chooser], masks: Masks | None = None) -> list[Sample]:
        """One sample per row of `logits` [rows, vocab] float32, which may be overwritten.

        masks: those of the same rows. Each row's chooser has been told of its token. A row without a token says why in
        `error`.
        """
        if all(row.plain for row in rows):
            return self._finish(self._ops.argmax(logits).tolist(), rows, {}, {})
        reports = _reports(logits, rows)
        logits, failed = self._change(logits, rows, masks)
        candidates = self._candidates(logits, rows)
        drawn = self._choose(logits, rows)
        for i, token in enumerate(drawn):
            if token < 0 and i not in failed:
                failed[i] = self._no_token(i, rows[i], logits, masks)
        return self._finish(drawn, rows, failed, candidates, reports)

    def _no_token(self, i: int, row: Chooser, logits: Tensor, masks: Masks | None) -> Told:
        mask = masks.bits[masks.rows.index(i)] if masks is not None and i in masks.rows else None
        return no_token_error(row, logits[i], mask, self._processors.plugins_of(row.uses)).told

    def take(self, tokens: list[int], rows: Sequence[Chooser]) -> list[Sample]:
        """One sample per row, of rows that are `plain`, whose most likely tokens are known: -1 where there is none."""
        return self._finish(tokens, rows, {}, {})

    def _change(self, logits: Tensor, rows: Sequence[Chooser], masks: Masks | None) -> tuple[Tensor, dict[int, Told]]:
        failed = {i: row.error for i, row in enumerate(rows) if row.error is not None}
        edits = [(i, row.edits) for i, row in enumerate(rows) if row.edits is not None]
        if edits:
            apply_edits(logits, edits)
        uses = [(i, use) for i, row in enumerate(rows) for use in row.uses if i not in failed]
        if uses:
            failed |= self._processors.apply(logits, uses)
        if masks is not None:
            logits, unmasked = self._constraints.apply(logits, masks, self._ops.mask_logits)
            failed = unmasked | failed
        return logits, failed

    def _choose(self, logits: Tensor, rows: Sequence[Chooser]) -> list[int]:
        """Token ids, -1 = none possible."""
        temperature, top_k, top_p, min_p = np.array([row.settings for row in rows], np.float64).T
        if not temperature.any():
            return self._ops.argmax(logits).tolist()
        seeds = np.array([row.seed for row in rows], np.uint64)
        chance = uniforms(seeds, np.array([len(row.output_ids) for row in rows], np.int64))
        return self._ops.draw(logits, temperature, chance, top_k.astype(np.int64), top_p, min_p).tolist()

    def _candidates(self, logits: Tensor, rows: Sequence[Chooser]) -> dict[int, tuple[tuple[int, float], ...]]:
        """For beams the 2 · width most likely tokens: enough to keep `width` when as many end."""
        beams = {i: row.params for i, row in enumerate(rows) if isinstance(row.params, BeamSearchParams)}
        if not beams:
            return {}
        given = logits[torch.tensor(list(beams), device=logits.device)]
        scales = [[max(params.temperature or 1.0, _COLDEST)] for params in beams.values()]
        scale = torch.tensor(scales, device=logits.device)
        some = (given - given.amax(-1, keepdim=True)) / scale if (scale != 1).any() else given
        first = torch.zeros(len(beams), dtype=torch.int64, device=logits.device)
        _, _, ids, values = self._ops.logprobs(some, first, 2 * max(params.beam_width for params in beams.values()))
        possible = given.gather(1, ids) > -torch.inf
        found = zip(beams.items(), ids.tolist(), values.tolist(), possible.tolist(), strict=True)
        return {
            i: tuple(each[:2] for each in zip(*columns, strict=True) if each[2])[: 2 * params.beam_width]
            for (i, params), *columns in found
        }

    def _finish(
        self,
        drawn: list[int],
        rows: Sequence[Chooser],
        failed: dict[int, Told],
        candidates: dict[int, tuple[tuple[int, float], ...]],
        reports: _Reports | None = None,
    ) -> list[Sample]:
        described = reports.of(drawn, self._ops.logprobs) if reports else {}
        samples = []
        for i, (token, row) in enumerate(zip(drawn, rows, strict=True)):
            error = failed.get(i) or (NOT_FINITE if token < 0 else None)
            if error is not None:
                samples.append(Sample(-1, error=error))
                continue
            if not row.beam:
                row.note(token)
            if row.beam or row.constraint is None:
                samples.append(Sample(token, described.get(i), candidates.get(i, ())))
            else:
                samples.append(self._followed(row, row.constraint, token, described.get(i)))
        return samples

    def _followed(self, row: Chooser, constraint: Constraint, token: int, described: TokenLogprobs | None) -> Sample:
        """The sample of a row that is constrained, and what must follow it."""
        try:
            forced, done = self._constraints.advance(constraint, token, row.jumps)
        except QuireError as error:
            return Sample(-1, error=error.told)
        for each in forced:
            row.note(each)
        return Sample(token, described, done=done, forced=tuple(forced))


@dataclass(frozen=True, slots=True)
class _Reports:
    """Rows that report log-probabilities, and their logits [rows, vocab] as the model gave them."""

    rows: list[int]
    wanted: list[int]
    logits: Tensor

    def of(self, drawn: Sequence[int], logprobs: Logprobs) -> dict[int, TokenLogprobs]:
        """The report of each row, now that all tokens are known."""
        tokens = [max(drawn[i], 0) for i in self.rows]
        return dict(zip(self.rows, describe(logprobs, self.logits, tokens, self.wanted), strict=True))


def _reports(logits: Tensor, rows: Sequence[Chooser]) -> _Reports | None:
    """What must be kept for reports before anything changes `logits`: a copy only where some of it will change."""
    wanted = {i: row.num_logprobs for i, row in enumerate(rows) if row.num_logprobs is not None}
    if not wanted:
        return None
    mine = list(wanted)
    if len(mine) < len(rows):
        logits = logits[torch.tensor(mine, device=logits.device)]
    elif any(row.changes for row in rows):
        logits = logits.clone()
    return _Reports(mine, list(wanted.values()), logits)

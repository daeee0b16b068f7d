"""Samples a token for each row of logits as its request asks, batched; rows never influence each other.

Order of what happens to a row:
    logprobs (of the model's own distribution, before any change)
    → allowed_token_ids, bad_words, min_tokens, logit_bias → repetition, frequency, presence penalty
    → logits processors → grammar mask → temperature (0: argmax) → top_k → top_p → min_p → draw

Steps that no row asks for cost nothing; a batch of plain greedy rows is one argmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from quire.engine.processors.logits_processors import LogitsProcessors, ProcessorState
from quire.engine.sampling.logits_edits import LogitsEdits, apply_edits
from quire.engine.sampling.logprobs import token_logprobs
from quire.engine.sampling.no_token import no_token_error
from quire.engine.sampling.not_finite import NOT_FINITE
from quire.engine.sampling.rng import MASK64, uniforms
from quire.engine.structured.constraint_tracker import Constraint, ConstraintTracker, PendingBitmask
from quire.errors import QuireError, WireError
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.types import Sample, TokenLogprobs
from quire_kernels.sampling import LogprobsOp
from quire_kernels.select import Ops

_MAX_TOP_K = 2**31  # above any vocabulary size
_MIN_TEMPERATURE = float(np.finfo(np.float32).tiny)  # the smallest divisor in float32
_GREEDY = (0.0, 0.0, 1.0, 0.0)
_NO_SALT = np.uint64(0)

Draw = Callable[[Tensor, Sequence["SamplingState"]], list[int]]
"""Token ids for rows of logits, -1 = none possible."""


@dataclass(slots=True, eq=False)
class SamplingState:
    """Sampling parameters and state of one sequence.

    output_ids: the tokens generated so far; only `append` adds to it. num_unread: those after them that only the device
    knows yet. is_plain: its tokens are drawn from the model's logits, and nothing else is reported. error: why it
    cannot be sampled. draw_params: temperature, top_k, top_p, min_p. jumps_forward: tokens that the grammar forces are
    accepted without a forward, since no logprobs are reported and nothing else could ban them.
    """

    params: SamplingParams | BeamSearchParams
    seed: int
    output_ids: list[int]
    edits: LogitsEdits | None = None
    processors: tuple[ProcessorState, ...] = ()
    constraint: Constraint | None = None
    error: WireError | None = None
    num_unread: int = 0
    is_plain: bool = field(init=False)
    is_plain_greedy: bool = field(init=False)
    is_beam: bool = field(init=False)
    num_logprobs: int | None = field(init=False)
    jumps_forward: bool = field(init=False)
    draw_params: tuple[float, float, float, float] = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        self.seed &= MASK64
        self.is_beam = isinstance(params, BeamSearchParams)
        self.num_logprobs = _num_logprobs(params)
        self.draw_params = _draw_params(params)
        reports = self.num_logprobs is not None
        self.is_plain = not (self.edits or self.processors or self.constraint or self.error or reports or self.is_beam)
        can_ban = bool(self.processors) or (self.edits is not None and self.edits.can_ban)
        self.jumps_forward = self.constraint is not None and not (self.is_beam or can_ban or reports)
        self.is_plain_greedy = self.is_plain and params.temperature == 0

    @property
    def changes_logits(self) -> bool:
        return self.edits is not None or bool(self.processors) or self.constraint is not None

    def append(self, token: int) -> None:
        """Record a new output token."""
        self.output_ids.append(token)
        if self.edits is not None:
            self.edits.append(token)


def _num_logprobs(params: SamplingParams | BeamSearchParams) -> int | None:
    """Alternatives to report; 0 if only sums are needed, to rank several sequences (best_of)."""
    if not isinstance(params, SamplingParams):
        return None
    if params.logprobs is None and params.num_seqs > params.n:
        return 0
    return params.logprobs


def _draw_params(params: SamplingParams | BeamSearchParams) -> tuple[float, float, float, float]:
    if not isinstance(params, SamplingParams) or params.greedy:
        return _GREEDY
    return params.temperature, min(params.top_k, _MAX_TOP_K), params.top_p, params.min_p


class Sampler:
    """Samples for one model. The state of each sequence is in its `SamplingState`."""

    def __init__(self, processors: LogitsProcessors, constraints: ConstraintTracker, ops: Ops) -> None:
        self._processors = processors
        self._constraints = constraints
        self._ops = ops

    def sync(self, row: SamplingState, tokens: Sequence[int]) -> None:
        """Append tokens that were chosen elsewhere, by beam search."""
        for token in tokens:
            row.append(token)
        if row.constraint is not None and row.error is None:
            try:
                self._constraints.replay(row.constraint, row.output_ids)
            except QuireError as error:
                row.error = error.wire

    def start_masks(self, rows: Sequence[SamplingState]) -> PendingBitmask | None:
        """Start to fill the grammar masks of the rows while their logits are computed."""
        return self._constraints.start_fill([(i, row.constraint) for i, row in enumerate(rows) if row.constraint])

    def sample(
        self,
        logits: Tensor,
        rows: Sequence[SamplingState],
        masks: PendingBitmask | None = None,
        draw: Draw | None = None,
    ) -> list[Sample]:
        """One sample per row of `logits` [rows, vocab] float32, which may be overwritten.

        masks: of the same rows. draw: in place of `draw`. Tokens are appended to the states of their rows; a row
        without a token has an `error`.
        """
        if all(row.is_plain_greedy for row in rows):
            return self._finish(self._ops.argmax(logits).tolist(), rows, {}, {})
        snapshot = _logprob_snapshot(logits, rows)
        logits, failed = self._change_logits(logits, rows, masks)
        candidates = self._beam_candidates(logits, rows)
        tokens = (draw or self.draw)(logits, rows)
        for i, token in enumerate(tokens):
            if token < 0 and i not in failed:
                failed[i] = self._no_token(i, rows[i], logits, masks)
        return self._finish(tokens, rows, failed, candidates, snapshot)

    def from_argmax(self, tokens: list[int], rows: Sequence[SamplingState]) -> list[Sample]:
        """One sample per plain greedy row, whose argmax is known: -1 where there is none."""
        return self._finish(tokens, rows, {}, {})

    def _no_token(self, i: int, row: SamplingState, logits: Tensor, masks: PendingBitmask | None) -> WireError:
        mask = masks.bits[masks.rows.index(i)] if masks is not None and i in masks.rows else None
        return no_token_error(row, logits[i], mask, self._processors.plugins_of(row.processors)).wire

    def _change_logits(
        self, logits: Tensor, rows: Sequence[SamplingState], masks: PendingBitmask | None
    ) -> tuple[Tensor, dict[int, WireError]]:
        """The logits to draw from, and errors by row."""
        failed = {i: row.error for i, row in enumerate(rows) if row.error is not None}
        edits = [(i, row.edits) for i, row in enumerate(rows) if row.edits is not None]
        if edits:
            apply_edits(logits, edits)
        processors = [(i, state) for i, row in enumerate(rows) for state in row.processors if i not in failed]
        if processors:
            failed |= self._processors.apply(logits, processors)
        if masks is not None:
            logits, unmasked = self._constraints.apply(logits, masks, self._ops.mask_logits)
            failed = unmasked | failed
        return logits, failed

    def draw(self, logits: Tensor, rows: Sequence[SamplingState], salt: np.uint64 = _NO_SALT) -> list[int]:
        """Token ids, -1 = none possible. salt: of the random numbers."""
        return self.choose(logits, rows, salt).tolist()  # type: ignore[no-any-return]

    def choose(self, logits: Tensor, rows: Sequence[SamplingState], salt: np.uint64 = _NO_SALT) -> Tensor:
        """Like `draw`, on the device of the logits: int64 [rows]."""
        arguments = draw_arguments(rows, salt)
        return self._ops.argmax(logits) if arguments is None else self._ops.sample(logits, *arguments)

    def _beam_candidates(
        self, logits: Tensor, rows: Sequence[SamplingState]
    ) -> dict[int, tuple[tuple[int, float], ...]]:
        """For beams the 2 · width most likely tokens: `width` beams go on even if as many end."""
        beams = {i: row.params for i, row in enumerate(rows) if isinstance(row.params, BeamSearchParams)}
        if not beams:
            return {}
        given = logits[torch.tensor(list(beams), device=logits.device)]
        scales = [[max(params.temperature or 1.0, _MIN_TEMPERATURE)] for params in beams.values()]
        scale = torch.tensor(scales, device=logits.device)
        scaled = (given - given.amax(-1, keepdim=True)) / scale if (scale != 1).any() else given
        first = torch.zeros(len(beams), dtype=torch.int64, device=logits.device)
        _, _, ids, values = self._ops.logprobs(scaled, first, 2 * max(params.beam_width for params in beams.values()))
        possible = given.gather(1, ids) > -torch.inf
        found = zip(beams.items(), ids.tolist(), values.tolist(), possible.tolist(), strict=True)
        return {
            i: tuple(each[:2] for each in zip(*columns, strict=True) if each[2])[: 2 * params.beam_width]
            for (i, params), *columns in found
        }

    def _finish(
        self,
        tokens: list[int],
        rows: Sequence[SamplingState],
        failed: dict[int, WireError],
        candidates: dict[int, tuple[tuple[int, float], ...]],
        snapshot: _LogprobSnapshot | None = None,
    ) -> list[Sample]:
        logprobs = snapshot.report(tokens, self._ops.logprobs) if snapshot else {}
        samples = []
        for i, (token, row) in enumerate(zip(tokens, rows, strict=True)):
            error = failed.get(i) or (NOT_FINITE if token < 0 else None)
            if error is not None:
                samples.append(Sample(-1, error=error))
                continue
            if not row.is_beam:
                row.append(token)
            if row.is_beam or row.constraint is None:
                samples.append(Sample(token, logprobs.get(i), candidates.get(i, ())))
            else:
                samples.append(self._accept(row, row.constraint, token, logprobs.get(i)))
        return samples

    def _accept(self, row: SamplingState, constraint: Constraint, token: int, logprobs: TokenLogprobs | None) -> Sample:
        """The sample of a constrained row, with the tokens that the grammar forces after it."""
        try:
            forced, done = self._constraints.advance(constraint, token, row.jumps_forward)
        except QuireError as error:
            return Sample(-1, error=error.wire)
        for each in forced:
            row.append(each)
        return Sample(token, logprobs, constraint_done=done, jump_forward_ids=tuple(forced))


def draw_arguments(rows: Sequence[SamplingState], salt: np.uint64 = _NO_SALT) -> Any:
    """Arguments of the op `sample` after the logits; None if all rows are greedy."""
    temperature, top_k, top_p, min_p = np.array([row.draw_params for row in rows], np.float64).T
    if not temperature.any():
        return None
    seeds = np.array([row.seed for row in rows], np.uint64)
    uniform = uniforms(seeds ^ salt, np.array([len(row.output_ids) + row.num_unread for row in rows], np.int64))
    return temperature, uniform, top_k.astype(np.int64), top_p, min_p


@dataclass(frozen=True, slots=True)
class _LogprobSnapshot:
    """The rows that report logprobs, how many each, and their logits [rows, vocab] as the model returned them."""

    rows: list[int]
    num_top: list[int]
    logits: Tensor

    def report(self, drawn: Sequence[int], logprobs: LogprobsOp) -> dict[int, TokenLogprobs]:
        """Logprobs by row, once all tokens are drawn."""
        tokens = [max(drawn[i], 0) for i in self.rows]
        return dict(zip(self.rows, token_logprobs(logprobs, self.logits, tokens, self.num_top), strict=True))


def _logprob_snapshot(logits: Tensor, rows: Sequence[SamplingState]) -> _LogprobSnapshot | None:
    """Taken before `logits` are changed; copies them only if some of the rows will change."""
    num_top = {i: row.num_logprobs for i, row in enumerate(rows) if row.num_logprobs is not None}
    if not num_top:
        return None
    reported = list(num_top)
    if len(reported) < len(rows):
        logits = logits[torch.tensor(reported, device=logits.device)]
    elif any(row.changes_logits for row in rows):
        logits = logits.clone()
    return _LogprobSnapshot(reported, list(num_top.values()), logits)

"""Chooses a token for each row of logits, as its request asks. Batched; rows never influence each other.

Order of what happens to a row:
    logprobs (of the model's own distribution, before any change)
    → allowed_token_ids, bad_words, min_tokens, logit_bias → repetition, frequency, presence penalty
    → plugin processors → grammar mask → temperature (0: take the largest) → top_k → top_p → min_p → draw

What no row asks for costs nothing; a batch that asks for nothing is one `max`. It knows no request ids,
no pages and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from quire.engine.draw import Filters, draw, uniforms
from quire.engine.logits import Edits, apply_edits
from quire.engine.logprobs import best, describe
from quire.engine.processors import Constraint, Constraints, Processors, Use
from quire.errors import QuireError
from quire.sampling import BeamSearchParams, SamplingParams
from quire.types import Sample, TokenLogprobs

_MASK64 = (1 << 64) - 1
_COLD = 1e-2  # below this temperature a quotient of ordinary logits may leave float32


@dataclass(slots=True, eq=False)
class Chooser:
    """How one seq's tokens are chosen: its parameters made ready, and what must follow its output.

    output_ids: the tokens generated so far; only `note` adds to it. error: why it cannot be sampled.
    """

    params: SamplingParams | BeamSearchParams
    seed: int
    output_ids: list[int]
    edits: Edits | None = None
    uses: tuple[Use, ...] = ()
    constraint: Constraint | None = None
    error: str | None = None
    plain: bool = field(init=False)
    beam: bool = field(init=False)
    num_logprobs: int | None = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        self.seed &= _MASK64
        self.beam = isinstance(params, BeamSearchParams)
        self.num_logprobs = _num_logprobs(params)
        asks = self.edits or self.uses or self.constraint or self.error or self.num_logprobs is not None
        self.plain = not self.beam and params.temperature == 0 and not asks

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


class Sampler:
    """One per model; holds nothing of any seq."""

    def __init__(self, processors: Processors, constraints: Constraints) -> None:
        self._processors = processors
        self._constraints = constraints

    def sample(self, logits: Tensor, rows: Sequence[Chooser]) -> list[Sample]:
        """One sample per row of `logits` [rows, vocab] float32, which may be overwritten.

        Each row's chooser has been told of its token. A row without a token says why in `error`.
        """
        if all(row.plain for row in rows):
            return self._finish(_largest(logits), rows, {}, {})
        reports = _raw_logprobs(logits, rows)
        failed = self._change(logits, rows)
        candidates = _candidates(logits, rows)
        drawn = _choose(logits, rows)
        return self._finish(drawn, rows, failed, candidates, reports)

    def _change(self, logits: Tensor, rows: Sequence[Chooser]) -> dict[int, str]:
        failed = {i: row.error for i, row in enumerate(rows) if row.error is not None}
        edits = [(i, row.edits) for i, row in enumerate(rows) if row.edits is not None]
        if edits:
            apply_edits(logits, edits)
        uses = [(i, use) for i, row in enumerate(rows) for use in row.uses if i not in failed]
        if uses:
            failed |= self._processors.apply(logits, uses)
        held = [(i, row.constraint) for i, row in enumerate(rows) if row.constraint is not None and i not in failed]
        if held:
            failed |= self._constraints.apply(logits, held)
        return failed

    def _finish(
        self,
        drawn: list[int],
        rows: Sequence[Chooser],
        failed: dict[int, str],
        candidates: dict[int, tuple[tuple[int, float], ...]],
        reports: _Reports | None = None,
    ) -> list[Sample]:
        described = reports.of(drawn) if reports else {}
        samples = []
        for i, (token, row) in enumerate(zip(drawn, rows, strict=True)):
            error = failed.get(i) or (_NO_TOKEN if token < 0 else None)
            done = False
            if error is None and not row.beam:
                row.note(token)
                if row.constraint is not None:
                    error, done = self._follow(row.constraint, token)
            if error is not None:
                samples.append(Sample(-1, error=error))
            else:
                samples.append(Sample(token, described.get(i), candidates.get(i, ()), None, done))
        return samples

    def _follow(self, constraint: Constraint, token: int) -> tuple[str | None, bool]:
        try:
            self._constraints.follow(constraint, token)
        except QuireError as error:
            return error.message, False
        return None, constraint.done


_NO_TOKEN = (
    "No token can be chosen: the model gave no finite logits, or everything was forbidden by "
    "allowed_token_ids, bad_words, min_tokens, logit_bias, a logits processor and the grammar together."
)


def _largest(logits: Tensor) -> list[int]:
    """The largest of each row, the first of equals; -1 where nothing is finite or something is NaN."""
    values, ids = logits.max(-1)
    return torch.where(values.isfinite(), ids, -1).tolist()


def _choose(logits: Tensor, rows: Sequence[Chooser]) -> list[int]:
    """Token ids, -1 = none possible. Beams get the most likely one."""
    random = [i for i, row in enumerate(rows) if isinstance(row.params, SamplingParams) and not row.params.greedy]
    if not random:
        return _largest(logits)
    some = logits if len(random) == len(rows) else logits[torch.tensor(random, device=logits.device)]
    params = [row.params for row in rows if isinstance(row.params, SamplingParams) and not row.params.greedy]
    filters = Filters(
        np.array([p.top_k for p in params], np.int64),
        np.array([p.top_p for p in params], np.float64),
        np.array([p.min_p for p in params], np.float64),
    )
    seeds = np.array([rows[i].seed for i in random], np.uint64)
    counts = np.array([len(rows[i].output_ids) for i in random], np.int64)
    temperature = torch.tensor([p.temperature for p in params], dtype=torch.float32, device=logits.device)
    drawn = draw(_tempered(some, temperature), uniforms(seeds, counts), filters)
    if len(random) == len(rows):
        return drawn.tolist()
    chosen = _largest(logits)
    for i, token in zip(random, drawn.tolist(), strict=True):
        chosen[i] = token
    return chosen


def _tempered(logits: Tensor, temperature: Tensor) -> Tensor:
    """logits / temperature; where that could overflow, of the distances to the largest."""
    cold = temperature < _COLD
    if cold.any():
        logits = logits - torch.where(cold, logits.amax(-1), 0.0)[:, None]
    return logits / temperature[:, None]


def _candidates(logits: Tensor, rows: Sequence[Chooser]) -> dict[int, tuple[tuple[int, float], ...]]:
    """For beams the 2 · width most likely tokens: enough to keep `width` when as many end."""
    found: dict[int, tuple[tuple[int, float], ...]] = {}
    widths = {i: row.params.beam_width for i, row in enumerate(rows) if isinstance(row.params, BeamSearchParams)}
    for width in sorted(set(widths.values())):
        mine = [i for i in widths if widths[i] == width]
        scale = torch.tensor([rows[i].params.temperature or 1.0 for i in mine], device=logits.device)
        some = logits[torch.tensor(mine, device=logits.device)] / scale[:, None]
        ids, values = best(torch.log_softmax(some, -1), 2 * width)
        for i, row_ids, row_values in zip(mine, ids, values, strict=True):
            found[i] = tuple(zip(row_ids, row_values, strict=True))
    return found


@dataclass(frozen=True, slots=True)
class _Reports:
    """Raw log-probabilities of the rows that report them, kept until their tokens are known."""

    rows: list[int]
    wanted: list[int]
    logprobs: Tensor

    def of(self, drawn: Sequence[int]) -> dict[int, TokenLogprobs]:
        tokens = [max(drawn[i], 0) for i in self.rows]
        return dict(zip(self.rows, describe(self.logprobs, tokens, self.wanted), strict=True))


def _raw_logprobs(logits: Tensor, rows: Sequence[Chooser]) -> _Reports | None:
    wanted = {i: row.num_logprobs for i, row in enumerate(rows) if row.num_logprobs is not None}
    if not wanted:
        return None
    mine = list(wanted)
    some = logits if len(mine) == len(rows) else logits[torch.tensor(mine, device=logits.device)]
    return _Reports(mine, list(wanted.values()), torch.log_softmax(some, -1))

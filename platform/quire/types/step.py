"""One step: the scheduler's plan, the runner's result, and the new output of each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from quire.errors import WireError
from quire.params.pooling import PoolingResult
from quire.types.request import Media, Params, WeightedAdapter
from quire.types.usage import ComputeCost

if TYPE_CHECKING:
    from torch import Tensor

FinishReason = Literal["stop", "length", "abort", "error"]

UNKNOWN = -1
"""Stands in a chunk for the token that an earlier plan samples, of which the result is not known yet."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute `len(token_ids)` tokens of a sequence, the first at position `start`; a single one may be `UNKNOWN`.

    new_pages: entries of the sequence's page table from `first_page` on. A copied page replaces a shared one, the
    others extend the table; the first chunk after a `NewSeq` has the whole table. The runner keeps the other entries.
    samples: whether to sample the next token from the logits of the last token. state_slot: of a model with state.
    num_drafts: of its last tokens, which were not sampled but drafted. Then a token is sampled after the token before
    them and after each draft that was sampled too. draft_probs: float32 [drafts or fewer, vocab], the distributions
    that they were drawn from; None if each was certain, as those beyond its rows were.
    """

    seq_id: int
    start: int
    token_ids: Sequence[int]
    new_pages: Sequence[int]
    samples: bool
    first_page: int = 0
    state_slot: int = -1
    num_drafts: int = 0
    draft_probs: Tensor | None = None

    @property
    def drafts(self) -> Sequence[int]:
        return self.token_ids[len(self.token_ids) - self.num_drafts :]


@dataclass(frozen=True, slots=True)
class NewSeq:
    """What the runner needs of a sequence before its first chunk, and again after a preemption.

    It repeats fields of the request, so that a plan is all that a runner needs. num_virtual, num_given: as in `Prompt`.
    """

    seq_id: int
    params: Params
    seed: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    media: tuple[Media, ...] = ()
    adapters: tuple[WeightedAdapter, ...] = ()
    token_types: tuple[int, ...] = ()
    num_virtual: int = 0
    num_given: int = 0

    @property
    def sent_ids(self) -> Sequence[int]:
        """The prompt as the client sent it: without virtual tokens."""
        return self.prompt_ids[self.num_virtual :]


@dataclass(frozen=True, slots=True)
class StateMoves:
    """Moves of state slots, as pairs of source and destination.

    swaps_out, copies, cleared (to zeros) and swaps_in take effect before the chunks are computed; they read what the
    slots held before all of them. checkpoints are copied once the chunks are computed.
    """

    copies: tuple[tuple[int, int], ...] = ()
    cleared: tuple[int, ...] = ()
    swaps_out: tuple[tuple[int, int], ...] = ()
    swaps_in: tuple[tuple[int, int], ...] = ()
    checkpoints: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: the tokens to compute, and the page moves before them.

    Order of effect: rows of `ended` sequences are dropped; `swaps_out`, `swaps_in` and `copies` move pages (pairs of
    source and destination); rows of `started` sequences are created; then `chunks` are computed.
    failures: errors of requests that can never run, by request id; `Scheduler.commit` ends them. state: for models with
    state, moves at the time of the page moves and after the chunks.
    """

    chunks: tuple[Chunk, ...] = ()
    started: tuple[NewSeq, ...] = ()
    ended: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    swaps_out: tuple[tuple[int, int], ...] = ()
    swaps_in: tuple[tuple[int, int], ...] = ()
    failures: Mapping[str, WireError] = field(default_factory=dict)
    state: StateMoves | None = None

    @property
    def is_empty(self) -> bool:
        return self == Plan()

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.token_ids) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: of the token, its rank (1 = most likely), and of the most likely tokens."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """The result of one sampling row. error: the serialized error, if no token could be sampled.

    candidates: for beam search, the most likely continuations as (token id, logprob), best first. jump_forward_ids:
    tokens that must follow this one. constraint_done: the constraint is complete, so the sequence stops after them.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    candidates: tuple[tuple[int, float], ...] = ()
    error: WireError | None = None
    constraint_done: bool = False
    jump_forward_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class AcceptedDrafts:
    """What the drafts of a chunk gained: the samples after the first, and how many of the drafts are output now."""

    samples: tuple[Sample, ...]
    num_drafts: int


@dataclass(frozen=True, slots=True)
class HiddenStates:
    """Hidden states of neighboring tokens of one sequence, for a drafter.

    start: position of the first token. token_ids: those tokens. rows: [len(token_ids), columns] in the model's dtype:
    what the LM head gets, then the inputs of the blocks that the drafter reads. Valid until the next step only.
    """

    seq_id: int
    start: int
    token_ids: Sequence[int]
    rows: Tensor


@dataclass(frozen=True, slots=True)
class StepResult:
    """Samples by sequence id, and log-probabilities of the prompt tokens of this step's chunks.

    pooled: results of pooled sequences whose last chunk this was. failures: sequences whose chunk could not be
    computed, with the reason; the contents of their pages are invalid. lost: sequences whose state was lost, because a
    forward raised midway; they must be computed again from what is cached. accepted: of sequences whose chunk had
    drafts. hidden: what the drafter reads, if it reads any.
    """

    samples: Mapping[int, Sample]
    prompt_logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    pooled: Mapping[int, PoolingResult] = field(default_factory=dict)
    lost: frozenset[int] = frozenset()
    accepted: Mapping[int, AcceptedDrafts] = field(default_factory=dict)
    hidden: Sequence[HiddenStates] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SeqDelta:
    """New output of one sequence of a request: of one step, or of `SamplingParams.stream_interval` tokens.

    index: number of the sequence within the request (0 … n−1). The first delta of a request has `num_cached_tokens`,
    `queue_s` (seconds from arrival to the first step) and, if requested, `prompt_logprobs` (entry 0 is None).
    cost: of the whole request so far. error: the serialized error. A beam arrives as one final delta with
    `cumulative_logprob`, a pooled prompt as one with `pooled`.
    """

    request_id: str
    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cumulative_logprob: float | None = None
    error: WireError | None = None
    queue_s: float | None = None
    pooled: PoolingResult | None = None
    cost: ComputeCost | None = None

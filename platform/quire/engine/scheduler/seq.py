"""Sequences: `Seq` is one generation in flight, `SeqGroup` the sequences of one request.

WAITING ──admitted──▶ RUNNING ──▶ FINISHED
   ▲  ▲                 │ │ ▲
   │  └──recompute──────┘ │ └──swap in──┐
   │                      └──swap out──▶ SWAPPED
PAUSED: a beam that has its candidates, lost its pages, and waits for the other beams
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from quire.engine.accounting.request_cost import RequestCost
from quire.engine.sampling.rng import seq_seed
from quire.engine.scheduler.page_pool import hash_page, hash_root
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.types import UNKNOWN, AdapterRef, FinishReason, NewSeq, Request, Sample, TokenLogprobs


class QueueKey(NamedTuple):
    """Sequences of one client that need the same adapters wait in one queue."""

    client: str
    adapters: tuple[AdapterRef, ...]

    @classmethod
    def from_request(cls, request: Request) -> QueueKey:
        return cls(request.client, tuple(use.ref for use in request.adapters))


class Status(Enum):
    """The status of a sequence; the diagram above shows the transitions."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    PAUSED = "paused"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class SeqGroup:
    """The seqs of one request, and what they share.

    arrival: its number in order of arrival; arrived_s: its time by the scheduler's clock.
    seqs: the live ones by index. pending_forks: indices of seqs that begin when the prompt is computed, except for its
    last `num_unshared` tokens, which each of them computes by itself to sample from.
    prompt_logprobs: one entry per prompt token scored so far (virtual tokens and the first have None), if the client
    asked for them. num_cached: prompt tokens found in the prefix cache; queue_s: seconds from arrival to admission;
    None before it.
    num_reserved: places among the running seqs that are kept for pending forks.
    hypotheses: finished beams so far, the best first.
    """

    request: Request
    arrival: int
    seed: int
    arrived_s: float = 0.0
    num_preempted: int = 0
    seqs: dict[int, Seq] = field(default_factory=dict)
    pending_forks: list[int] = field(default_factory=list)
    num_unshared: int = 1
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached: int | None = None
    queue_s: float | None = None
    num_reserved: int = 0
    first_delta_sent: bool = False
    cost: RequestCost = field(default_factory=RequestCost)
    hypotheses: list[Hypothesis] = field(default_factory=list)

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt, virtual ones included."""
        return len(self.request.prompt.token_ids)

    @property
    def num_virtual(self) -> int:
        return self.request.prompt.num_virtual

    @property
    def live_indices(self) -> list[int]:
        """Indices of the seqs that the client still waits for, pending forks last."""
        return [*(index for index, seq in self.seqs.items() if not seq.aborted), *self.pending_forks]

    @property
    def beams(self) -> BeamSearchParams | None:
        """The parameters of a beam search."""
        params = self.request.params
        return params if isinstance(params, BeamSearchParams) else None

    @property
    def wants_logprobs(self) -> bool:
        params = self.request.params
        return isinstance(params, SamplingParams) and params.logprobs is not None

    @property
    def pooling(self) -> PoolingParams | None:
        """The parameters of a prompt that is pooled."""
        params = self.request.params
        return params if isinstance(params, PoolingParams) else None

    @property
    def resumable_from_kv(self) -> bool:
        """Whether pages of its tokens can be reused; not if the hidden states of all its tokens are pooled."""
        return self.pooling is None or self.pooling.reads_cache

    @property
    def interval(self) -> int:
        """Tokens of a seq per delta."""
        params = self.request.params
        return (params.stream_interval or 1) if isinstance(params, SamplingParams) else 1

    def add_prompt_logprobs(self, start: int, entries: Sequence[TokenLogprobs]) -> None:
        """entries: of the tokens after position `start`. After a preemption some come a second time."""
        known = self.prompt_logprobs
        assert known is not None
        if entries and len(known) < self.prompt_len:
            known.extend(entries[max(0, len(known) - start - 1) : self.prompt_len - start - 1])


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam. stopped: by an end-of-text token, not by length."""

    output_ids: tuple[int, ...]
    cumulative: float
    score: float
    stopped: bool


@dataclass(slots=True, eq=False)
class Seq:
    """One generation. Positions 0 … computed - 1 have K and V, in `pages` (or `host_pages` while swapped).

    tokens: prompt and output. max_len: number of tokens at which it ends with "length"; below min_len neither
    end-of-text nor stop ids end it. state_slot, host_slot: where its state is, -1 = not there. page_hashes: of its
    first full pages, computed when needed. num_registered: pages that were offered to the prefix cache. in_flight:
    tokens that plans without a result compute; num_unknown: those that they sample. yielded_at: its tokens when it was
    last preempted because its client had more than its share. in_runner: the runner has a row for it. aborted: the
    client does not wait for it, but it computes the prompt that its forks need.
    num_unreported: its newest tokens that are in no delta yet; unreported_logprobs: theirs, if the client asked for
    them. cumulative: summed logprob of the output, None if the sampler does not report it. candidates: of this round of
    a beam search; while set, nothing is computed.
    """

    id: int
    group: SeqGroup
    index: int
    tokens: list[int]
    max_len: int
    min_len: int
    stop_ids: frozenset[int]
    eos_ids: frozenset[int]
    status: Status = Status.WAITING
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    host_pages: list[int] = field(default_factory=list)
    state_slot: int = -1
    host_slot: int = -1
    page_hashes: list[bytes] = field(default_factory=list)
    num_registered: int = 0
    in_flight: int = 0
    num_unknown: int = 0
    yielded_at: int = -1
    in_runner: bool = False
    aborted: bool = False
    num_unreported: int = 0
    unreported_logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative: float | None = 0.0
    candidates: tuple[tuple[int, float], ...] | None = None
    client: str = field(init=False)
    queue_key: QueueKey = field(init=False)

    def __post_init__(self) -> None:
        self.queue_key = QueueKey.from_request(self.group.request)
        self.client = self.queue_key.client

    @property
    def arrival(self) -> int:
        return self.group.arrival

    @property
    def priority(self) -> int:
        """Priority of the request; smaller is more urgent."""
        return self.group.request.priority

    @property
    def adapter(self) -> str | None:
        """Name of the adapter, None for the base model; several are joined by +."""
        return "+".join(use.ref.name for use in self.group.request.adapters) or None

    @property
    def is_infallible(self) -> bool:
        """Whether its chunks are computed whenever their step is: it uses no tower and no adapter."""
        request = self.group.request
        return not request.adapters and not request.prompt.media

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.group.prompt_len

    @property
    def to_compute(self) -> int:
        """Tokens in no plan that it computes before its forks begin; below 0 if they could have begun sooner."""
        unshared = self.group.num_unshared if self.group.pending_forks else 0
        return len(self.tokens) + self.num_unknown - self.computed - self.in_flight - unshared

    def may_compute(self, ahead: bool) -> bool:
        """Whether a running seq can be in the next plan. ahead: also after unknown tokens, unless it ends."""
        if self.in_flight:
            ends = self.num_unknown > 0 and len(self.tokens) + self.num_unknown >= self.max_len
            return (ahead or not self.num_unknown) and self.to_compute > 0 and not ends
        return self.candidates is None

    def next_ids(self, end: int) -> list[int]:
        """The tokens to compute next, up to position `end` - 1."""
        return self.tokens[self.computed + self.in_flight : end] or [UNKNOWN]

    @property
    def is_generating(self) -> bool:
        """Whether it needs one token computed, or a few that are computed again after rejected drafts."""
        return self.to_compute == 1 or 0 < self.num_output >= self.to_compute - 1

    def append(self, sample: Sample) -> tuple[FinishReason | None, int | None]:
        """Append the sampled token and those it forces, until one ends the seq.

        Returns the finish reason, None if it goes on, and the stop id that ended it.
        """
        token_ids = (sample.token_id, *sample.jump_forward_ids)
        num_left = self.max_len - len(self.tokens)
        for token_id in token_ids[:num_left]:
            self.tokens.append(token_id)
            self.num_unreported += 1
            if len(self.tokens) >= self.min_len:
                if token_id in self.eos_ids:
                    return "stop", None
                if token_id in self.stop_ids:
                    return "stop", token_id
        if sample.constraint_done and len(token_ids) <= num_left:
            return "stop", None
        return ("length" if len(token_ids) >= num_left else None), None

    def drain_unreported(self) -> dict[str, Any]:
        """The fields of a delta that reports all unreported tokens."""
        fields: dict[str, Any] = {"token_ids": tuple(self.tokens[-self.num_unreported :])}
        if self.unreported_logprobs:
            fields["logprobs"] = tuple(self.unreported_logprobs)
            self.unreported_logprobs.clear()
        self.num_unreported = 0
        return fields

    def page_hash(self, page: int, page_size: int) -> bytes:
        """Hash of its `page`-th page, which must be full of known tokens."""
        request = self.group.request
        while len(self.page_hashes) <= page:
            i = len(self.page_hashes)
            parent = self.page_hashes[-1] if i else hash_root(request.adapters, request.cache_salt)
            start = i * page_size
            token_ids = self.tokens[start : start + page_size]
            self.page_hashes.append(hash_page(parent, token_ids, start, request.prompt.media))
        return self.page_hashes[page]

    def start(self) -> NewSeq:
        """What the runner needs before the first chunk."""
        request, prompt = self.group.request, self.group.request.prompt
        return NewSeq(
            seq_id=self.id,
            params=request.params,
            seed=seq_seed(self.group.seed, self.index),
            prompt_ids=prompt.token_ids,
            output_ids=tuple(self.tokens[len(prompt.token_ids) :]),
            media=prompt.media,
            adapters=request.adapters,
            token_types=prompt.token_types,
            num_virtual=prompt.num_virtual,
            num_given=prompt.num_given,
        )

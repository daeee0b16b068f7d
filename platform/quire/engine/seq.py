"""Seq: one generation in flight, and the only mutable state of it; Group: the seqs of one request.

They say what is; `quire.engine.scheduler` and its neighbours change them, at `plan` and at `commit`.

    WAITING ──admitted──▶ RUNNING ──▶ FINISHED
       ▲  ▲                 │ │ ▲
       │  └──recompute──────┘ │ └──back in──┐
       │                      └──swap──▶ SWAPPED
    PAUSED: a beam that has its candidates, lost its pages, and waits for its siblings only
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from quire.engine.keys import page_key, root_key
from quire.pooling import PoolingParams
from quire.sampling import BeamSearchParams, SamplingParams
from quire.types import AdapterRef, Request, SeqStart, TokenLogprobs

MASK64 = (1 << 64) - 1


def splitmix64(value: int) -> int:
    """One well-mixed 64-bit number of another (Steele, Lea & Flood, 2014)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


class Lane(NamedTuple):
    """Seqs of one client that need the same adapters."""

    client: str
    adapters: tuple[AdapterRef, ...]


class Status(Enum):
    """Where a seq stands; the picture above says what leads where."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    PAUSED = "paused"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Group:
    """The seqs of one request, and what they share.

    arrival: its number in order of arrival; arrived_s: its time by the scheduler's clock.
    seqs: the live ones by index. to_fork: indices of seqs that begin when the prompt is computed, but for its last
    left_to_forks tokens, which each computes by itself to sample from.
    prompt_logprobs: one entry per prompt token known so far (the first is None), when asked for.
    num_cached: prompt tokens found in the prefix cache, and queue_s: seconds from arrival to admission;
    both None until the first seq was admitted.
    reserve: places among the running seqs that are kept for forks still to come.
    told: whether the first delta is out. hypotheses: finished beams so far, the best first.
    """

    request: Request
    arrival: int
    seed: int
    arrived_s: float = 0.0
    num_preempted: int = 0
    seqs: dict[int, Seq] = field(default_factory=dict)
    to_fork: list[int] = field(default_factory=list)
    left_to_forks: int = 1
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached: int | None = None
    queue_s: float | None = None
    reserve: int = 0
    told: bool = False
    hypotheses: list[Hypothesis] = field(default_factory=list)

    @property
    def prompt_len(self) -> int:
        """Prompt tokens."""
        return len(self.request.prompt.token_ids)

    @property
    def beams(self) -> BeamSearchParams | None:
        """The parameters, if this is a beam search."""
        params = self.request.params
        return params if isinstance(params, BeamSearchParams) else None

    @property
    def wants_logprobs(self) -> bool:
        """Whether the client asked for log-probabilities of the output."""
        params = self.request.params
        return isinstance(params, SamplingParams) and params.logprobs is not None

    @property
    def pooling(self) -> PoolingParams | None:
        """The parameters, if the prompt is pooled."""
        params = self.request.params
        return params if isinstance(params, PoolingParams) else None

    @property
    def lives_in_pages(self) -> bool:
        """Whether a seq that has its pages can go on: not one of which all hidden states are gathered."""
        return self.pooling is None or self.pooling.reads_cache

    @property
    def interval(self) -> int:
        """How many tokens of a seq a delta tells of."""
        params = self.request.params
        return (params.stream_interval or 1) if isinstance(params, SamplingParams) else 1

    def seed_of(self, index: int) -> int:
        """Seed of one seq: the same whenever it is started."""
        return splitmix64(splitmix64(self.seed & MASK64) ^ index)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished beam."""

    output_ids: tuple[int, ...]
    cumulative: float
    score: float
    stopped: bool


@dataclass(slots=True, eq=False)
class Seq:
    """One generation. Positions 0 … computed - 1 have K and V, in `pages` (or `host_pages` while swapped).

    tokens: prompt and output. max_len: number of tokens at which it ends with "length"; min_len: below
    it neither end-of-text nor stop ids end it. keys: keys of its first full pages, made when needed.
    num_keyed: pages that were offered to the prefix cache. in_runner: a SeqStart is out and not ended.
    aborted: its client is gone, but it computes the prompt that its forks wait for.
    untold: its newest tokens of which no delta has told yet, and untold_logprobs, when asked for, theirs.
    cumulative: summed logprob of the output, None when the sampler did not give them.
    candidates: beam search, this round's; set = nothing to compute until the siblings have theirs.
    """

    id: int
    group: Group
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
    keys: list[bytes] = field(default_factory=list)
    num_keyed: int = 0
    in_runner: bool = False
    aborted: bool = False
    untold: int = 0
    untold_logprobs: list[TokenLogprobs] = field(default_factory=list)
    cumulative: float | None = 0.0
    candidates: tuple[tuple[int, float], ...] | None = None

    @property
    def arrival(self) -> int:
        """Order of arrival of the request; smaller came first."""
        return self.group.arrival

    @property
    def priority(self) -> int:
        """The request's priority; smaller is more urgent."""
        return self.group.request.priority

    @property
    def adapter(self) -> str | None:
        """Name of the adapter, None for the base model; of several with + between them."""
        return "+".join(use.ref.name for use in self.group.request.adapters) or None

    @property
    def client(self) -> str:
        """Whose request it is."""
        return self.group.request.client

    @property
    def lane(self) -> Lane:
        """Where it waits: seqs of the same lane may begin when one of them may."""
        request = self.group.request
        return Lane(request.client, tuple(use.ref for use in request.adapters))

    @property
    def cannot_fail(self) -> bool:
        """Whether its chunks are computed if its step is: no tower and no adapter has a part in them."""
        request = self.group.request
        return not request.adapters and not request.prompt.media

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        """Generated tokens."""
        return len(self.tokens) - self.group.prompt_len

    @property
    def to_compute(self) -> int:
        """Tokens without K and V that it computes before its forks begin; below 0 if they could have begun sooner."""
        return len(self.tokens) - self.computed - (self.group.left_to_forks if self.group.to_fork else 0)

    def key_of(self, page: int, page_size: int) -> bytes:
        """Key of its `page`-th page, which must be full of known tokens."""
        request = self.group.request
        while len(self.keys) <= page:
            i = len(self.keys)
            parent = self.keys[-1] if self.keys else root_key(request.adapters, request.cache_salt)
            start = i * page_size
            self.keys.append(page_key(parent, self.tokens[start : start + page_size], start, request.prompt.media))
        return self.keys[page]

    def start(self) -> SeqStart:
        """What the runner must know before the first chunk."""
        request, prompt = self.group.request, self.group.request.prompt
        return SeqStart(
            seq_id=self.id,
            params=request.params,
            seed=self.group.seed_of(self.index),
            prompt_ids=prompt.token_ids,
            output_ids=tuple(self.tokens[len(prompt.token_ids) :]),
            media=prompt.media,
            adapters=request.adapters,
            token_types=prompt.token_types,
        )

"""Roster: every live seq and where it stands; all changes of `Seq.status` happen here.

It moves seqs between waiting, running and swapped, and keeps their pages in step. Which seq moves
when is the planner's affair, what a seq says is the outcome's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from quire.engine.fairness import ClientTokens
from quire.engine.limits import Limits
from quire.engine.policy import Policy
from quire.engine.queue import SeqQueue
from quire.engine.seq import Group, Seq, Status
from quire.engine.tables import PageTables
from quire.records import OrdersSeqs
from quire.sampling import SamplingParams
from quire.types import Request

log = logging.getLogger(__name__)

WARN_EVERY = 50
MOST_ENDED = 4096
"""Ended requests of which statistics are kept until they are asked for."""


@dataclass(slots=True)
class Counts:
    """Totals since start, as `EngineStats` names them, and the tokens of the latest steps."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    generated_tokens: int = 0
    recomputes: int = 0
    swaps: int = 0
    corrupted: int = 0
    ended_preemptions: list[int] = field(default_factory=list)
    iteration_tokens: list[int] = field(default_factory=list)


class Roster:
    """Who is where. `ended` collects ids that the runner may forget with the next plan.

    clients: those with unfinished requests.
    """

    def __init__(self, tables: PageTables, policy: OrdersSeqs, limits: Limits, clock: Callable[[], float]) -> None:
        self.tables = tables
        self.policy = Policy.of(policy)
        self.limits = limits
        self._clock = clock
        self.groups: dict[str, Group] = {}
        self.seqs: dict[int, Seq] = {}
        self.running: dict[int, Seq] = {}
        self.waiting = SeqQueue(self.policy)
        self.swapped = SeqQueue(self.policy)
        self.ended: list[int] = []
        self.clients = ClientTokens(limits.max_num_batched_tokens)
        self.counts = Counts()
        self._next_id = count()
        self._arrivals = count()

    def enter(self, request: Request, max_len: int) -> None:
        """Queue a request: one seq computes the prompt, the others fork from it.

        Raises PluginFailed when the policy fails on it.
        """
        params, arrival, prompt = request.params, next(self._arrivals), request.prompt.token_ids
        sampling = isinstance(params, SamplingParams)
        seed = params.seed if isinstance(params, SamplingParams) else None
        group = Group(request, arrival, self.limits.seed + arrival if seed is None else seed, self._clock())
        group.reserve = params.num_seqs - 1
        group.left_to_forks = self.limits.left_to_forks(request.prompt)
        group.to_fork = list(range(1, params.num_seqs)) if sampling else []  # beams fork when they have candidates
        if isinstance(params, SamplingParams) and params.prompt_logprobs is not None:
            group.prompt_logprobs = [None]
        seq = Seq(
            id=next(self._next_id),
            group=group,
            index=0,
            tokens=list(prompt),
            max_len=max_len,
            min_len=len(prompt) + (params.min_tokens if isinstance(params, SamplingParams) else 0),
            stop_ids=frozenset((params.stop_token_ids or ()) if isinstance(params, SamplingParams) else ()),
            eos_ids=frozenset() if params.ignore_eos else self.limits.eos_ids,
        )
        self.waiting.push(seq)
        self._register(seq)
        self.groups[request.id] = group
        self.clients.enter(request.client)

    def _register(self, seq: Seq) -> None:
        self.seqs[seq.id] = seq
        seq.group.seqs[seq.index] = seq

    def run(self, seq: Seq) -> None:
        """Count it among the running; it holds pages from now on."""
        seq.status = Status.RUNNING
        self.running[seq.id] = seq

    def admit(self, seq: Seq, hits: list[int]) -> list[Seq]:
        """Make a waiting or swapped seq run on these cached pages; it and the forks that it was ready for."""
        group = seq.group
        if seq.status is Status.SWAPPED:
            self.swapped.remove(seq)
            self.tables.swap_in(seq, hits)
        else:
            self.waiting.remove(seq)
            self.tables.adopt(seq, hits)
            if group.num_cached is None:
                group.num_cached = seq.computed
                group.queue_s = self._clock() - group.arrived_s
                self.counts.cached_tokens += seq.computed
                self.counts.queried_tokens += group.prompt_len
        self.run(seq)
        return self.fork_all(seq) if seq.to_compute <= 0 else [seq]

    def fork_all(self, parent: Seq) -> list[Seq]:
        """Begin the seqs that waited for the prompt; those of the family that run, the parent first."""
        group = parent.group
        indices, group.to_fork, group.reserve = group.to_fork, [], 0
        family = [self.fork(parent, index) for index in indices]
        if parent.aborted:
            self.end(parent)
        return [seq for seq in (parent, *family) if seq.status is Status.RUNNING]

    def fork(self, parent: Seq, index: int | None = None, extra: Sequence[int] = ()) -> Seq:
        """A new seq with the parent's tokens and `extra`, on the parent's pages if it can run at once.

        `index` None numbers it by its id, for beams, whose place is known only at the end.
        """
        seq_id = next(self._next_id)
        child = Seq(
            id=seq_id,
            group=parent.group,
            index=seq_id if index is None else index,
            tokens=[*parent.tokens, *extra],
            max_len=parent.max_len,
            min_len=parent.min_len,
            stop_ids=parent.stop_ids,
            eos_ids=parent.eos_ids,
            keys=list(parent.keys),
            cumulative=parent.cumulative,
        )
        self._register(child)
        if parent.status is Status.RUNNING and len(self.running) < self.limits.max_num_seqs:
            self.tables.fork(parent, child)
            self.run(child)
        else:
            self.waiting.put_back(child)
        return child

    def preempt(self, seq: Seq) -> None:
        """Take the pages of a running seq: to the host if there is room and leave, else to be recomputed."""
        counts, tables = self.counts, self.tables
        seq.group.num_preempted += 1
        del self.running[seq.id]
        self._leave_runner(seq)
        may = self.limits.preemption != "recompute" and seq.group.lives_in_pages
        swap = may and 0 < len(seq.pages) <= tables.host_pool.available
        if swap:
            counts.swaps += 1
            tables.swap_out(seq)
            seq.status = Status.SWAPPED
            self.swapped.put_back(seq)
        else:
            counts.recomputes += 1
            tables.drop(seq)
            self.wait(seq)
        total = counts.swaps + counts.recomputes
        if total % WARN_EVERY == 1:
            log.warning(
                "The KV cache is full: request %s gives up its pages and will be %s (%d such preemptions so far). "
                "More KV cache or a smaller --max-num-seqs makes this rarer.",
                seq.group.request.id,
                "swapped back in" if swap else "recomputed",
                total,
            )

    def wait(self, seq: Seq) -> None:
        """Queue a seq that holds nothing, unless it has nothing to compute before its siblings."""
        if seq.candidates is None:
            seq.status = Status.WAITING
            self.waiting.put_back(seq)
        else:
            seq.status = Status.PAUSED

    def end(self, seq: Seq) -> None:
        """Forget a seq, wherever it stands, and its request with the last of them."""
        if seq.status is Status.RUNNING:
            del self.running[seq.id]
        elif seq.status is Status.WAITING:
            self.waiting.remove(seq)
        elif seq.status is Status.SWAPPED:
            self.swapped.remove(seq)
        self.tables.drop(seq)
        self._leave_runner(seq)
        seq.status = Status.FINISHED
        del self.seqs[seq.id]
        group = seq.group
        del group.seqs[seq.index]
        if not group.seqs:
            del self.groups[group.request.id]
            self.clients.leave(group.request.client)
            self.counts.ended_preemptions.append(group.num_preempted)
            del self.counts.ended_preemptions[:-MOST_ENDED]

    def _leave_runner(self, seq: Seq) -> None:
        if seq.in_runner:
            self.ended.append(seq.id)
            seq.in_runner = False

"""Every live sequence by status. All changes of `Seq.status` happen here.

It moves sequences between waiting, running and swapped together with their pages. The planner decides which sequence
moves and when, `Committer` what is reported of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from quire.engine.fairness.client_tokens import ClientTokens
from quire.engine.scheduler.limits import SchedulerLimits
from quire.engine.scheduler.page_tables import PageTables
from quire.engine.scheduler.policy import Policy
from quire.engine.scheduler.seq import Seq, SeqGroup, Status
from quire.engine.scheduler.waiting_queue import WaitingQueue
from quire.params.sampling import SamplingParams
from quire.records import SchedulingPolicyImpl
from quire.types import Request

log = logging.getLogger(__name__)

WARN_EVERY = 50
MAX_ENDED = 4096
"""Ended requests whose statistics are kept for the next `Scheduler.stats`."""


@dataclass(slots=True)
class SchedulerCounters:
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


class SchedulerState:
    """Sequences and requests by status. ended: ids of seqs whose rows the runner drops with the next plan.

    clients: those with unfinished requests.
    """

    def __init__(
        self, tables: PageTables, policy: SchedulingPolicyImpl, limits: SchedulerLimits, clock: Callable[[], float]
    ) -> None:
        self.tables = tables
        self.policy = Policy.from_impl(policy)
        self.limits = limits
        self._clock = clock
        self.groups: dict[str, SeqGroup] = {}
        self.seqs: dict[int, Seq] = {}
        self.running: dict[int, Seq] = {}
        self.waiting = WaitingQueue(self.policy)
        self.swapped = WaitingQueue(self.policy)
        self.ended: list[int] = []
        self.clients = ClientTokens(limits.max_num_batched_tokens, limits.max_num_seqs)
        self.counts = SchedulerCounters()
        self._next_id = count()
        self._arrivals = count()

    @property
    def num_in_plan(self) -> int:
        """A plan's part of the seqs that run or wait."""
        return -(-(len(self.running) + len(self.waiting) + len(self.swapped)) // self.limits.num_divisions)

    def add(self, request: Request, max_len: int) -> None:
        """Queue a request: one seq computes the prompt, the others fork from it.

        Raises PluginFailed if the policy fails on it.
        """
        params, arrival, prompt = request.params, next(self._arrivals), request.prompt.token_ids
        sampling = params if isinstance(params, SamplingParams) else None
        seed = sampling.seed if sampling is not None else None
        group = SeqGroup(request, arrival, self.limits.seed + arrival if seed is None else seed, self._clock())
        group.num_reserved = params.num_seqs - 1
        group.num_unshared = self.limits.num_unshared_tokens(request.prompt)
        if sampling is not None:  # beams fork when they have candidates
            group.pending_forks = list(range(1, params.num_seqs))
            group.prompt_logprobs = [None] * (group.num_virtual + 1) if sampling.prompt_logprobs is not None else None
        seq = Seq(
            id=next(self._next_id),
            group=group,
            index=0,
            tokens=list(prompt),
            max_len=max_len,
            min_len=len(prompt) + (sampling.min_tokens if sampling is not None else 0),
            stop_ids=frozenset((sampling.stop_token_ids or ()) if sampling is not None else ()),
            eos_ids=frozenset() if params.ignore_eos else self.limits.eos_ids,
        )
        self.waiting.push(seq)
        self._register(seq)
        self.groups[request.id] = group
        self.clients.add_request(request)

    def _register(self, seq: Seq) -> None:
        self.seqs[seq.id] = seq
        seq.group.seqs[seq.index] = seq

    def _set_running(self, seq: Seq) -> None:
        seq.status = Status.RUNNING
        self.running[seq.id] = seq
        self.clients.places.start(seq.client)

    def _stop_running(self, seq: Seq) -> None:
        del self.running[seq.id]
        self.clients.places.stop(seq.client)
        if seq.in_runner:
            self.ended.append(seq.id)
            seq.in_runner = False

    def admit(self, seq: Seq, hits: list[int]) -> list[Seq]:
        """Make a waiting or swapped seq run on these cached pages. Returns it and the forks that begin with it."""
        group = seq.group
        if seq.status is Status.SWAPPED:
            self.swapped.remove(seq)
            self.tables.swap_in(seq, hits)
        else:
            self.waiting.remove(seq)
            self.tables.attach_cached(seq, hits)
            if group.num_cached is None:
                group.num_cached = max(0, seq.computed - group.num_virtual)
                group.queue_s = self._clock() - group.arrived_s
                self.counts.cached_tokens += group.num_cached
                self.counts.queried_tokens += group.prompt_len - group.num_virtual
        self._set_running(seq)
        return self.fork_all(seq) if seq.to_compute <= 0 else [seq]

    def fork_all(self, parent: Seq) -> list[Seq]:
        """Begin the seqs that waited for the prompt. Returns the seqs of the group that run, the parent first."""
        group = parent.group
        indices, group.pending_forks, group.num_reserved = group.pending_forks, [], 0
        forks = [self.fork(parent, index) for index in indices]
        if parent.aborted:
            self.end(parent)
        return [seq for seq in (parent, *forks) if seq.status is Status.RUNNING]

    def fork(self, parent: Seq, index: int | None = None, extra: Sequence[int] = ()) -> Seq:
        """A new seq with the parent's tokens and `extra`, on the parent's pages if it can run at once.

        index: None for beams, whose rank is known only at the end; then the id is the index.
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
            page_hashes=list(parent.page_hashes),
            cumulative=parent.cumulative,
        )
        self._register(child)
        if parent.status is Status.RUNNING and len(self.running) < self.limits.max_num_seqs:
            self.tables.fork(parent, child)
            self._set_running(child)
        else:
            self.waiting.requeue(child)
        return child

    def preempt(self, seq: Seq) -> None:
        """Take the pages of a running seq: swap them out if that is allowed and they fit, else recompute them later."""
        counts, tables = self.counts, self.tables
        seq.group.num_preempted += 1
        self._stop_running(seq)
        may_swap = self.limits.preemption != "recompute" and seq.group.resumable_from_kv
        swap = may_swap and tables.can_swap(seq)
        if swap:
            counts.swaps += 1
            tables.swap_out(seq)
            seq.status = Status.SWAPPED
            self.swapped.requeue(seq)
        else:
            counts.recomputes += 1
            tables.free(seq)
            self.wait(seq)
        total = counts.swaps + counts.recomputes
        if total % WARN_EVERY == 1:
            log.warning(
                "The KV cache is full: request %s is preempted and will be %s (%d preemptions so far). "
                "More KV cache or a smaller --max-num-seqs makes this rarer.",
                seq.group.request.id,
                "swapped back in" if swap else "recomputed",
                total,
            )

    def rewind(self, lost: Iterable[int]) -> None:
        """Let running seqs whose state was lost be computed again."""
        for seq in [self.seqs[seq_id] for seq_id in lost if seq_id in self.seqs]:
            self.tables.pool.reset()  # some pages were registered when the step was planned
            self._stop_running(seq)
            self.tables.free(seq)
            self.wait(seq)

    def wait(self, seq: Seq) -> None:
        """Queue a seq without pages, or pause a beam that waits for the candidates of the other beams."""
        if seq.candidates is None:
            seq.status = Status.WAITING
            self.waiting.requeue(seq)
        else:
            seq.status = Status.PAUSED

    def end(self, seq: Seq) -> None:
        """Remove a seq in any status, and its request with the last seq."""
        if seq.status is Status.RUNNING:
            self._stop_running(seq)
        elif seq.status is Status.WAITING:
            self.waiting.remove(seq)
        elif seq.status is Status.SWAPPED:
            self.swapped.remove(seq)
        self.tables.free(seq)
        seq.status = Status.FINISHED
        del self.seqs[seq.id]
        group = seq.group
        del group.seqs[seq.index]
        if not group.seqs:
            del self.groups[group.request.id]
            self.clients.remove_request(group.request)
            self.counts.ended_preemptions.append(group.num_preempted)
            del self.counts.ended_preemptions[:-MAX_ENDED]

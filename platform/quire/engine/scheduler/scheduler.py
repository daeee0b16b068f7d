"""The interface of the scheduler: requests in, plans out, results in, deltas out.

Several plans may be in flight: the runner computes them in the order in which they were made, and their results are
committed in that order. Requests may be added and aborted meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import monotonic
from types import MappingProxyType

from quire.engine.recurrent.state_slots import StateSlots
from quire.engine.scheduler.candidates import Admission, TryAdmit
from quire.engine.scheduler.commit import Committer
from quire.engine.scheduler.limits import SchedulerLimits
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.page_tables import PageTables
from quire.engine.scheduler.planner import Planner
from quire.engine.scheduler.seq import Seq
from quire.engine.scheduler.state import SchedulerState
from quire.errors import BadRequest, Overloaded, QuireError
from quire.records import Draft, SchedulingPolicyImpl
from quire.types import EngineStats, Plan, Request, SeqDelta, StepResult, in_background

NO_DRAFTS: Mapping[int, Draft] = MappingProxyType({})
MAX_ITERATIONS = 4096
"""Steps whose token counts are kept for the next `stats`."""


class Scheduler:
    """Decides what each step computes. Its decisions change the order of work, never the results.

    pool: pages on the device. host_pool: pages in host memory for swapped sequences, if any. try_admit: called before a
    request is admitted or resumed, until it returns `Admission.READY`; see `Admission`. clock: seconds, for statistics.
    states: for models with state beside pages.
    """

    def __init__(
        self,
        pool: PagePool,
        policy: SchedulingPolicyImpl,
        limits: SchedulerLimits,
        host_pool: PagePool | None = None,
        try_admit: TryAdmit = lambda request: Admission.READY,
        clock: Callable[[], float] = monotonic,
        states: StateSlots | None = None,
    ) -> None:
        self._limits, self.pool = limits, pool
        self._tables = PageTables(pool, host_pool or PagePool(0, pool.page_size, caching=False), states)
        self._state = SchedulerState(self._tables, policy, limits, clock)
        self._planner = Planner(self._state, try_admit)
        self._committer = Committer(self._state)

    @property
    def has_work(self) -> bool:
        """Whether there are requests, or rows of ended seqs in the runner."""
        return self.has_requests or bool(self._state.ended)

    @property
    def has_requests(self) -> bool:
        """Whether a request was accepted and has not ended."""
        return bool(self._state.groups)

    @property
    def num_generating(self) -> int:
        """Running seqs that compute one token in each step, so that a long step delays them; not in the background."""
        return sum(seq.to_compute == 1 and not in_background(seq.client) for seq in self._state.running.values())

    def has_request(self, request_id: str) -> bool:
        """Whether a request was accepted and has not ended."""
        return request_id in self._state.groups

    def add(self, request: Request) -> None:
        """Accept a request.

        Raises BadRequest (it can never fit, or its id is in use), Overloaded (too many are queued) or PluginFailed (the
        policy raised); then the request is not accepted.
        """
        state = self._state
        if request.id in state.groups:
            raise BadRequest(f"A request with id {request.id!r} is being answered; ids must be unique.", "request_id")
        if self._is_full_for(request.client):
            raise Overloaded(f"{len(state.groups)} requests are queued, the most allowed. Try again later.")
        state.add(request, self._limits.max_tokens_for(request, self.pool.num_pages * self.pool.page_size))

    def _is_full_for(self, client: str) -> bool:
        """Whether the queue is full and the client has at least its share of it: no client can lock out another."""
        state, max_requests = self._state, self._limits.max_num_queued_reqs
        mine = state.clients.num_requests(client)
        return len(state.groups) >= max_requests and mine >= max_requests // (state.clients.num_clients + (mine == 0))

    def abort(self, request_id: str, index: int | None = None) -> list[SeqDelta]:
        """End a request, or one of its seqs, at any time; unknown ids are ignored."""
        return self._committer.finish_request(request_id, "abort", index=index)

    def fail_begun(self, error: QuireError) -> list[SeqDelta]:
        """End every request that holds pages or a row in the runner, because a step failed midway.

        The prefix cache is emptied: some pages were registered before they were computed.
        """
        self.reset_prefix_cache()
        if self._tables.states is not None:
            self._tables.states.drop_taken()
        groups = list(self._state.groups.values())
        begun = [g for g in groups if any(s.pages or s.host_pages or s.in_runner for s in g.seqs.values())]
        finish = self._committer.finish_request
        return [delta for group in begun for delta in finish(group.request.id, "error", error.wire)]

    def plan(
        self,
        max_tokens: int | None = None,
        max_background: int = 0,
        drafts: Mapping[int, Draft] = NO_DRAFTS,
        ahead: bool = False,
    ) -> Plan:
        """The next step, of at most `max_tokens` tokens; without chunks if nothing can be computed now.

        max_background: tokens of clients in the background, if others have requests too. drafts: tokens that may follow
        those of running seqs, by seq id. ahead: also for seqs in flight, after tokens that are `UNKNOWN`.
        """
        return self._planner.plan(max_tokens, max_background, drafts, ahead)

    def commit(self, plan: Plan, result: StepResult, token_s: float = 0.0) -> list[SeqDelta]:
        """Apply the result of a plan. token_s: its seconds for each token."""
        if self._tables.states is not None:
            self._tables.states.commit(plan.state, result.lost.union(result.failures))
            self._state.rewind(result.lost)
        deltas = self._committer.commit(plan, result, token_s)
        if plan.chunks:
            counts = self._state.counts
            counts.steps += 1
            counts.iteration_tokens.append(plan.num_tokens)
            del counts.iteration_tokens[:-MAX_ITERATIONS]
        return deltas

    def reset_prefix_cache(self) -> int:
        """Empty the prefix cache. Returns the number of pages freed."""
        if self._tables.states is not None:
            self._tables.states.pool.reset()
        return self.pool.reset()

    def stats(self, model: str) -> EngineStats:
        """Counters and gauges; lists hold what was added since the last call."""
        state, counts, pool = self._state, self._state.counts, self.pool
        iterations, counts.iteration_tokens = tuple(counts.iteration_tokens), []
        preempted, counts.ended_preemptions = tuple(counts.ended_preemptions), []
        return EngineStats(
            model=model,
            num_running=len(state.running),
            num_waiting=len(state.waiting),
            num_swapped=len(state.swapped),
            num_pages=pool.num_pages,
            num_pages_used=pool.num_used,
            num_pages_cached=pool.num_idle,
            num_slots_used=pool.num_used * pool.page_size - self._num_unused_slots(),
            num_steps_total=counts.steps,
            num_prompt_tokens_total=counts.prompt_tokens,
            num_cached_tokens_total=counts.cached_tokens,
            num_queried_tokens_total=counts.queried_tokens,
            num_generated_tokens_total=counts.generated_tokens,
            num_preemptions_recompute_total=counts.recomputes,
            num_preemptions_swap_total=counts.swaps,
            num_corrupted_total=counts.corrupted,
            iteration_tokens=iterations,
            ended_preemptions=preempted,
            state=None if self._tables.states is None else self._tables.states.stats(),
        )

    def generating(self) -> list[Seq]:
        """Running seqs that sample after their next chunk: drafts may follow it."""
        running = self._state.running.values()
        return [seq for seq in running if seq.is_generating and not seq.group.pending_forks and not seq.group.beams]

    def waiting(self) -> Iterator[Request]:
        """The request of each seq that waits to be admitted."""
        return (seq.group.request for seq in self._state.waiting)

    def _num_unused_slots(self) -> int:
        """Empty slots at the end of last pages in use, shared pages counted once."""
        size = self.pool.page_size
        ends = [(seq, (seq.computed + seq.in_flight) % size) for seq in self._state.running.values()]
        filled = {seq.pages[-1]: end for seq, end in ends if end}
        return size * len(filled) - sum(filled.values())

"""Scheduler: requests in, plans out, results in, deltas out. Pure Python: no tensors, no text.

    add ─▶ plan() ─▶ (the runner computes) ─▶ commit(plan, result) ─▶ deltas

`quire.engine.roster` keeps who is where, `planner` draws the plan, `outcome` takes in the result.
One plan is in flight at a time; requests may be added and aborted while it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

from quire.engine import outcome
from quire.engine.limits import Limits
from quire.engine.pages import PagePool
from quire.engine.planner import Planner
from quire.engine.roster import Roster
from quire.engine.seq import Status
from quire.engine.tables import PageTables
from quire.errors import BadRequest, Overloaded, QuireError
from quire.records import OrdersSeqs
from quire.types import Delta, EngineStats, Plan, Request, StepResult

MOST_ITERATIONS = 4096
"""Steps whose token counts are kept for the next `stats`."""


class Scheduler:
    """Decides what each step computes, so that order changes but results never do.

    pool: pages on the device. host_pool: pages in host memory for seqs that are swapped out, if any.
    ready: asked before a request is admitted or resumed, until it says yes; while it says no (its
    grammar is not compiled) others may pass, and while it says None (its adapters have no seats) others with other
    adapters. clock: seconds; it is told, and decides nothing.
    """

    def __init__(
        self,
        pool: PagePool,
        policy: OrdersSeqs,
        limits: Limits,
        host_pool: PagePool | None = None,
        ready: Callable[[Request], bool | None] = lambda request: True,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._limits = limits
        self._tables = PageTables(pool, host_pool or PagePool(0, pool.page_size, caching=False))
        self._roster = Roster(self._tables, policy, limits, clock)
        self._planner = Planner(self._roster, ready)

    @property
    def has_work(self) -> bool:
        """Whether there is something to compute, or ended seqs that the runner has not forgotten yet."""
        return bool(self._roster.groups or self._roster.ended)

    def knows(self, request_id: str) -> bool:
        """Whether a request was accepted and has not ended."""
        return request_id in self._roster.groups

    def add(self, request: Request) -> None:
        """Accept a request.

        Raises BadRequest (it can never fit, or its id is in use), Overloaded (too many are queued) and
        PluginFailed (the policy raised); then nothing was accepted.
        """
        roster = self._roster
        if request.id in roster.groups:
            raise BadRequest(f"A request with id {request.id!r} is being answered; ids must be unique.", "request_id")
        if self._is_full_for(request.client):
            raise Overloaded(f"{len(roster.groups)} requests are queued, the most allowed. Try again later.")
        pool = self._tables.pool
        roster.enter(request, self._limits.longest(request, pool.num_pages * pool.page_size))

    def _is_full_for(self, client: str) -> bool:
        """Whether no more requests of a client are accepted. When all others together fill the queue, a client may
        still have its share of the number, so that no client is kept out by another.
        """
        roster, most = self._roster, self._limits.max_num_queued_reqs
        if len(roster.groups) < most:
            return False
        mine = roster.clients.num_requests(client)
        return mine >= most // (len(roster.clients) + (mine == 0))

    def abort(self, request_id: str, index: int | None = None) -> list[Delta]:
        """End a request, or one of its seqs, at any time; nothing if it is not there (any more)."""
        group = self._roster.groups.get(request_id)
        if group is None:
            return []
        if index is None:
            return outcome.end_group(self._roster, group, "abort")
        return outcome.end_one(self._roster, group, index, "abort")

    def fail(self, request_id: str, error: QuireError) -> list[Delta]:
        """End a request that cannot be served, telling why; nothing if it is not there (any more)."""
        group = self._roster.groups.get(request_id)
        if group is None:
            return []
        return outcome.end_group(self._roster, group, "error", error.told)

    def fail_begun(self, error: QuireError) -> list[Delta]:
        """End every request that holds something on the device or the host: a step failed midway there.

        No cached page can be trusted any more: some were offered before they were computed.
        """
        self._tables.pool.forget()
        groups = list(self._roster.groups.values())
        begun = [g for g in groups if any(s.pages or s.host_pages or s.in_runner for s in g.seqs.values())]
        return [delta for group in begun for delta in self.fail(group.request.id, error)]

    def plan(self, max_tokens: int | None = None) -> Plan:
        """The next step, of at most `max_tokens` tokens; empty when nothing can be computed now."""
        return self._planner.plan(max_tokens)

    def commit(self, plan: Plan, result: StepResult) -> list[Delta]:
        """Take in what the runner made of the plan."""
        deltas = outcome.apply(self._roster, plan, result)
        if plan.chunks:
            counts = self._roster.counts
            counts.steps += 1
            counts.iteration_tokens.append(plan.num_tokens)
            del counts.iteration_tokens[:-MOST_ITERATIONS]
        return deltas

    def reset_prefix_cache(self) -> int:
        """Forget all cached pages; the number of pages that became free."""
        return self._tables.pool.forget()

    def stats(self, model: str) -> EngineStats:
        """Counters and gauges; lists are of what was since the last call."""
        roster, counts, pool = self._roster, self._roster.counts, self._tables.pool
        iterations, counts.iteration_tokens = tuple(counts.iteration_tokens), []
        preempted, counts.ended_preemptions = tuple(counts.ended_preemptions), []
        return EngineStats(
            model=model,
            num_running=len(roster.running),
            num_waiting=len(roster.waiting),
            num_swapped=len(roster.swapped),
            num_pages=pool.num_pages,
            num_pages_used=pool.num_used,
            num_pages_cached=pool.num_idle,
            num_slots_used=pool.num_used * pool.page_size - self._unused_slots(),
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
        )

    def waiting(self) -> Iterator[Request]:
        """The request of each seq that waits to be admitted."""
        return (seq.group.request for seq in self._roster.waiting)

    def _unused_slots(self) -> int:
        """Slots of pages in use that hold nothing: the ends of last pages, shared ones counted once."""
        size = self._tables.pool.page_size
        filled = {seq.pages[-1]: seq.computed % size for seq in self._roster.running.values() if seq.computed % size}
        return size * len(filled) - sum(filled.values())

    def check(self) -> None:
        """Assert every invariant that holds between steps; for tests and debugging."""
        roster, tables, size = self._roster, self._tables, self._tables.pool.page_size
        seqs = list(roster.seqs.values())
        tables.pool.check(seq.pages for seq in seqs)
        tables.host_pool.check(seq.host_pages for seq in seqs)
        for seq in seqs:
            assert seq.computed <= len(seq.tokens), "computed tokens are tokens"
            assert len(seq.pages) + len(seq.host_pages) == tables.pool.pages_for(seq.computed), "a page table fits"
            assert not (seq.pages and seq.host_pages), "pages are here or there"
            assert seq.num_keyed <= seq.computed // size, "only full pages are keyed"
            assert seq.in_runner <= (seq.status is Status.RUNNING), "the runner knows only running seqs"
            assert seq.group.seqs[seq.index] is seq, "a group lists its seqs"
            assert roster.groups[seq.group.request.id] is seq.group, "a seq's request is known"
        places = [*roster.running.values(), *roster.waiting, *roster.swapped]
        outside = [seq for seq in seqs if seq.status is Status.PAUSED]
        assert sorted(s.id for s in [*places, *outside]) == sorted(roster.seqs), "each seq stands in one place"
        assert len(roster.running) <= self._limits.max_num_seqs, "no more run than may"
        assert all(seq.status is Status.RUNNING for seq in roster.running.values()), "running seqs run"
        assert all(group.seqs for group in roster.groups.values()), "a live request has a live seq"
        idle = [seq for seq in [*roster.waiting, *outside] if seq.pages or seq.host_pages]
        assert not idle, "who waits holds nothing"

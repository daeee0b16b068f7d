"""The planner: which tokens of which sequences the next step computes, and which sequences are preempted for them.

1. Running seqs are preempted, as the policy says, until the pages suffice for the tokens of the others.
2. Running seqs get a token each; longer remainders of prompts share the rest of the budget.
3. Swapped seqs come back, then waiting ones are admitted, while budget, pages and the number of seqs allow.
4. Drafts are added to the chunks of seqs that sample, as far as budget and pages are left.

Victims are chosen before anything is planned, so nothing planned is ever taken back, and no page moves twice in a step.
A victim in flight is preempted once its result is committed; until then the plans are empty.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from itertools import islice

from quire.engine.fairness.client_shares import ClientShares
from quire.engine.multimodal.media_bounds import align_to_media, trim_hits_to_media
from quire.engine.scheduler.candidates import Candidates, TryAdmit
from quire.engine.scheduler.plan_builder import PlanBuilder
from quire.engine.scheduler.seq import Seq, Status
from quire.engine.scheduler.state import SchedulerState
from quire.engine.speculation.drafted_chunks import with_drafts
from quire.errors import PluginFailed
from quire.records import Draft
from quire.types import Chunk, Plan, in_background

log = logging.getLogger(__name__)

MAX_COMPARED = 16
"""Waiting seqs whose tokens are compared with those of an admitted one, to find prefixes that they share."""

PAGES_PER_SPARE_PAGE = 100
"""One page in so many is kept for the growth of running seqs when another one is admitted."""


class _VictimInFlight(Exception):
    """The seq to preempt is being computed."""


class Planner:
    """Makes plans from `state`. try_admit: see `Candidates`."""

    def __init__(self, state: SchedulerState, try_admit: TryAdmit) -> None:
        self._state = state
        self._tables = state.tables
        self._pool = state.tables.pool
        self._limits = state.limits
        self._states = state.tables.states
        self._candidates = Candidates(state, try_admit, self._waits_for_state if self._states is not None else None)
        self._shares = ClientShares(state)

    def plan(self, max_tokens: int | None, max_background: int, drafts: Mapping[int, Draft], ahead: bool) -> Plan:
        """The next step, of at most `max_tokens` tokens; see `ClientShares.divide` for `max_background`.

        drafts: by seq id. They take what budget and pages the others leave. ahead: see `Scheduler.plan`.

        `max_tokens` is exceeded by a prompt without chunked prefill, and by a medium that is computed in one step.
        """
        limit = self._limits.max_num_batched_tokens
        if max_tokens is not None and self._limits.chunked_prefill:
            limit = min(limit, max_tokens)
        if limit < 1:
            return Plan()
        builder = PlanBuilder(limit, self._limits.max_num_batched_tokens, ahead)
        try:
            self._schedule(builder, max_background)
        except _VictimInFlight:  # before there are chunks
            return Plan()
        if drafts:
            builder.chunks = with_drafts(builder.chunks, drafts, builder.budget, self._state)
        copies, swaps_out, swaps_in = self._tables.drain_moves()
        ended, self._state.ended = self._state.ended, []
        return Plan(
            chunks=tuple(builder.chunks),
            started=tuple(builder.started),
            ended=tuple(ended),
            copies=tuple(copies),
            swaps_out=tuple(swaps_out),
            swaps_in=tuple(swaps_in),
            failures=self._candidates.drain_failures(),
            state=None if self._states is None else self._states.drain_moves(),
        )

    def _schedule(self, builder: PlanBuilder, max_background: int) -> None:
        """Preempt seqs and plan chunks. Raises _VictimInFlight."""
        state, first = self._state, None
        self._preempt_until_fit(builder.ahead)
        if state.clients.num_clients > 1:
            first = self._preempt_over_share(builder)
            builder.shares = self._shares.divide(builder.budget, max_background, first)
        self._schedule_running(builder)
        self._schedule_waiting(builder, None if builder.shares else first)
        if builder.shares and not builder.chunks:  # the clients that have tokens left cannot use them now
            builder.shares = {}
            self._schedule_running(builder)
            self._schedule_waiting(builder)
        while builder.blocked and not builder.chunks and state.running:
            self._preempt_latest()
            self._schedule_waiting(builder)

    # --- preemption ---------------------------------------------------------------------------------

    def _preempt(self, seq: Seq) -> None:
        """Raises _VictimInFlight if the seq is being computed."""
        if seq.in_flight:
            raise _VictimInFlight
        self._state.preempt(seq)

    def _preempt_until_fit(self, ahead: bool) -> None:
        """Preempt until the pages that the running seqs need are available; a single seq always fits."""
        running, num_pages_needed = self._state.running, self._tables.num_pages_needed
        while sum(num_pages_needed(s) for s in running.values() if s.may_compute(ahead)) > self._pool.available:
            self._preempt(self._choose_victim(running.values()))

    def _preempt_over_share(self, builder: PlanBuilder) -> Seq | None:
        """Preempt seqs of clients above their share until the next seqs of the others fit. Returns the first of these.

        A client is only brought down to its share, and a seq samples a token before it is preempted again, so that two
        clients cannot keep preempting each other.
        """
        self._state.clients.find_leaders()
        num_due = self._shares.num_due(builder.budget)
        seq = self._candidates.first({}, builder.late) if num_due else None
        places = self._state.clients.places
        if seq is None or in_background(seq.client) or places.num_running[seq.client] >= places.share(seq.client):
            return None
        while self._state.running and (client := self._client_in_the_way(seq, num_due)) is not None:
            own = [each for each in self._state.running.values() if each.client == client]
            if not (victims := [each for each in own if each.num_tokens > each.yielded_at]):
                break
            victim = self._choose_victim(victims)
            self._preempt(victim)
            victim.yielded_at = victim.num_tokens
            builder.late.add(client)
        return seq

    def _client_in_the_way(self, seq: Seq, num_due: int) -> str | None:
        """The client above its share of what a waiting seq lacks, if the seq lacks something and there is one.

        num_due: seqs that need places, this one included.
        """
        behind = next(filter(in_background, self._state.clients.places.num_running), None)
        if self._shares.exceeds_max_seqs(seq, num_due):
            return behind or self._shares.client_with_most_seqs(seq)
        lacks_pages = self._shares.lacks_pages(
            seq, self._match_prefix(seq), self._pool.num_pages // PAGES_PER_SPARE_PAGE
        )
        return (behind or self._shares.client_with_most_pages(seq)) if lacks_pages else None

    def _choose_victim(self, running: Collection[Seq]) -> Seq:
        """The running seq to preempt, as the policy says; those in the background come first."""
        try:
            key = self._state.policy.victim_key
            return max(running, key=lambda seq: (in_background(seq.client), key(seq), seq.id))
        except Exception as error:
            fault = error if isinstance(error, PluginFailed) else self._state.policy.fault(error)
            log.warning("The scheduling policy failed to choose a victim; the latest arrival is taken. %s", fault)
            return max(running, key=lambda seq: (seq.arrival, seq.id))

    def _preempt_latest(self) -> None:
        """Preempt the latest arrival: all running beams wait for beams of their requests that do not run."""
        # such calls end under any policy, because a seq that already has its beam candidates keeps them
        self._preempt(max(self._state.running.values(), key=lambda seq: (seq.arrival, seq.id)))

    # --- chunks -------------------------------------------------------------------------------------

    def _schedule_running(self, builder: PlanBuilder) -> None:
        running = self._state.running
        ready = [seq for seq in running.values() if seq.may_compute(builder.ahead)]
        starved = len(ready) > (most := -(-len(running) // self._limits.num_divisions))
        ready = ready[:most]  # the others are for the next plan
        counted = [not in_background(seq.client) for seq in ready]
        num_behind = sum(counted)
        for seq, is_counted in zip(ready, counted, strict=True):
            num_behind -= is_counted
            spent = bool(builder.shares) and builder.shares.get(seq.client, 0) <= 0
            if not builder.budget or spent or not self._schedule_chunk(seq, builder, num_behind):
                starved = True
        self._state.clients.count(builder.chunks, self._state.seqs)
        if starved:  # seqs without a chunk come first in the next step
            for chunk in builder.chunks:
                running[chunk.seq_id] = running.pop(chunk.seq_id)

    def _schedule_chunk(self, seq: Seq, builder: PlanBuilder, num_behind: int = 0) -> bool:
        """Plan the next tokens of a running seq; False if the budget does not suffice for the medium that comes next.

        num_behind: running seqs that come after this one. A token is left for each of them, except by the first seq
        of a step if its medium needs more, so that no medium waits forever.
        """
        start = seq.computed + seq.in_flight
        max_tokens = min(builder.budget - num_behind, builder.shares.get(seq.client, builder.budget))
        end = min(start + seq.to_compute, start + max(1, max_tokens))
        if self._states is not None:
            end = self._states.cut(seq, end)
        hard_budget = builder.hard_budget - num_behind if builder.chunks else builder.hard_budget
        end = self._align_to_media(seq, start, end, hard_budget)
        if end == start:
            return False
        samples = end == seq.num_tokens + seq.num_unknown < seq.max_len
        first_page = self._tables.extend_table(seq, end)
        if not seq.in_runner:
            seq.in_runner = True
            builder.started.append(seq.start())
            first_page = 0
        pages = seq.pages[first_page:]
        builder.chunks.append(Chunk(seq.id, start, seq.next_ids(end), pages, samples, first_page, seq.state_slot))
        seq.in_flight += end - start
        seq.num_unknown += samples
        if self._states is not None:
            self._states.take(seq, end)
        if seq.is_infallible and end // self._pool.page_size > seq.num_registered:
            # seqs that are planned after it in this step share its pages already
            self._tables.register(seq, min(end, seq.num_tokens))
        builder.budget = max(0, builder.budget - (end - start))
        builder.hard_budget -= end - start
        if builder.shares:
            builder.shares[seq.client] = builder.shares.get(seq.client, 0) - (end - start)
        return True

    def _align_to_media(self, seq: Seq, start: int, end: int, max_tokens: int) -> int:
        media = seq.group.request.prompt.media
        return align_to_media(media, start, end, max_tokens) if self._limits.bidirectional_media and media else end

    # --- admission ----------------------------------------------------------------------------------

    def _schedule_waiting(self, builder: PlanBuilder, first: Seq | None = None) -> None:
        """Admit swapped seqs, then waiting ones, in order, `first` before all; one that does not fit blocks others."""
        builder.blocked = False
        running, max_num_seqs = self._state.running, self._limits.max_num_seqs
        while builder.budget and not (builder.chunks and len(running) >= max_num_seqs):
            seq, first = first or self._candidates.first(builder.shares, builder.late), None
            if seq is None:
                return
            hits = self._match_if_fits(seq, builder)
            if hits is None:
                builder.blocked = True
                return
            if self._states is not None and seq.status is not Status.SWAPPED:
                self._states.share(seq, islice(self._state.waiting, MAX_COMPARED))
            for member in self._state.admit(seq, hits):
                if not builder.budget or self._tables.num_pages_needed(member) > self._pool.available:
                    return  # such a fork waits for the next step, where `_preempt_until_fit` comes first
                if self._schedule_chunk(member, builder):
                    self._state.clients.count(builder.chunks[-1:], self._state.seqs)

    def _match_if_fits(self, seq: Seq, builder: PlanBuilder) -> list[int] | None:
        """The cached pages that a seq can begin with, or None if it does not fit now.

        It fits if there are pages for all its tokens, however few are computed first: an admitted seq is preempted only
        if others generate more. With one client no running seq still lacks pages for tokens it has, or the budget would
        be used up.
        """
        running, pool = self._state.running, self._pool
        if running and (len(builder.chunks) >= self._state.num_in_plan or self._shares.exceeds_max_seqs(seq)):
            return None
        hits = self._match_prefix(seq)
        start = max(seq.computed, len(hits) * pool.page_size, seq.group.request.prompt.num_given)
        end = min(seq.num_tokens, start + builder.budget)
        if self._align_to_media(seq, start, end, builder.hard_budget) == start:
            return None
        if not self._limits.chunked_prefill:
            rest = seq.to_compute - len(hits) * pool.page_size
            if builder.budget < rest <= self._limits.max_num_batched_tokens:
                return None
        num_idle_hits = sum(pool.refs[page] == 0 for page in hits)  # taking them into use makes them unavailable
        num_pages = pool.pages_for(seq.num_tokens) - len(hits) + num_idle_hits
        if running:
            num_pages += self._shares.num_reserved(seq.group) + self._shares.num_pages_to_grow
            num_pages += pool.num_pages // PAGES_PER_SPARE_PAGE
            if self._limits.num_divisions > 1:  # those without a chunk
                num_pages += sum(self._tables.num_pages_needed(each) for each in running.values())
        return hits if num_pages <= pool.available else None

    def _match_prefix(self, seq: Seq) -> list[int]:
        """The cached pages that a seq can begin with."""
        hits = self._tables.match_prefix(seq, self._num_cacheable(seq))
        if self._limits.media_in_one and seq.status is not Status.SWAPPED:
            del hits[trim_hits_to_media(seq.group.request.prompt.media, len(hits), self._pool.page_size) :]
        if self._states is not None and seq.status is not Status.SWAPPED:
            return self._states.trim(seq, hits)
        return hits

    def _waits_for_state(self, seq: Seq) -> bool:
        """Whether a running seq will take a checkpoint that a waiting one can begin with."""
        assert self._states is not None
        return seq.status is not Status.SWAPPED and self._states.is_promised(seq, self._num_cacheable(seq))

    def _num_cacheable(self, seq: Seq) -> int:
        """How many of its first tokens need not be computed if the prefix cache has them."""
        if seq.status is Status.SWAPPED:
            return seq.computed
        logprobs = seq.group.prompt_logprobs
        if logprobs is not None and len(logprobs) < seq.group.prompt_len:
            return 0  # prompt logprobs come from computing the prompt
        return seq.num_tokens - 1 if seq.group.resumable_from_kv else 0

"""Planner: which tokens of which seqs the next step computes, and who gives up pages for them.

1. room: running seqs are preempted, as the policy says, until the others have pages for their tokens;
2. running seqs get a token each, and longer remainders share what is left of the budget;
3. swapped seqs come back, then waiting ones are admitted, while budget, places and pages last.

Victims are chosen before anything is planned, so nothing planned is ever taken back, and no page that
moves in a step moves twice. It knows no tensors and no tokens' meaning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from quire.engine.chunk_ends import chunk_end, found_apart
from quire.engine.fairness import crowding_lanes
from quire.engine.queue import Lane
from quire.engine.roster import Roster
from quire.engine.seq import Seq, Status
from quire.errors import PluginFailed
from quire.types import Chunk, Plan, Request, SeqStart

log = logging.getLogger(__name__)

SPARE_SHARE = 100
"""One page in so many is kept for the growth of running seqs when another is admitted."""


@dataclass(slots=True)
class Draft:
    """A plan in the making.

    budget: tokens left. room: tokens that could be computed if need be, where a medium must be computed whole.
    blocked: the next seq had to stay outside for want of pages, places or budget.
    """

    budget: int
    room: int
    blocked: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    started: list[SeqStart] = field(default_factory=list)


class Planner:
    """Draws plans from a roster.

    ready: whether a request may begin or resume now; None = neither may others with the same adapters.
    """

    def __init__(self, roster: Roster, ready: Callable[[Request], bool | None]) -> None:
        self._roster = roster
        self._tables = roster.tables
        self._pool = roster.tables.pool
        self._limits = roster.limits
        self._ready = ready

    def plan(self, max_tokens: int | None) -> Plan:
        """The next step, of at most `max_tokens` tokens.

        Without chunked prefill `max_tokens` cannot be honoured: a prompt is computed whole or not at all. Nor can it
        where media are computed whole and the one that comes next has more.
        """
        roster, limit = self._roster, self._limits.max_num_batched_tokens
        if max_tokens is not None and self._limits.chunked_prefill:
            limit = min(limit, max_tokens)
        if limit < 1:
            return Plan()
        self._make_room()
        draft = Draft(limit, self._limits.max_num_batched_tokens)
        self._grant_running(draft)
        self._admit(draft)
        while draft.blocked and not draft.chunks and roster.running:
            self._yield_room()
            self._admit(draft)
        copies, swaps_out, swaps_in = self._tables.moves()
        ended, roster.ended = roster.ended, []
        return Plan(
            chunks=tuple(draft.chunks),
            started=tuple(draft.started),
            ended=tuple(ended),
            copies=tuple(copies),
            swaps_out=tuple(swaps_out),
            swaps_in=tuple(swaps_in),
        )

    def _make_room(self) -> None:
        """Preempt until the pages that the running seqs need are there; one seq alone always fits."""
        running, need = self._roster.running, self._tables.need
        while sum(map(need, running.values())) > self._pool.available:
            self._roster.preempt(self._victim())

    def _victim(self) -> Seq:
        running = self._roster.running.values()
        try:
            return max(running, key=lambda seq: (self._roster.policy.victim_key(seq), seq.id))
        except Exception as error:
            fault = error if isinstance(error, PluginFailed) else self._roster.policy.fault(error)
            log.warning("The scheduling policy failed to choose a victim; the latest arrival is taken. %s", fault)
            return max(running, key=lambda seq: (seq.arrival, seq.id))

    def _yield_room(self) -> None:
        """All who run wait for siblings outside: the latest arrival makes room, so that one can come in.

        This cannot go round in circles, whatever the policy: who has its candidates keeps them.
        """
        self._roster.preempt(max(self._roster.running.values(), key=lambda seq: (seq.arrival, seq.id)))

    def _grant_running(self, draft: Draft) -> None:
        running = self._roster.running
        behind = sum(seq.candidates is None for seq in running.values())
        starved = False
        for seq in running.values():
            if seq.candidates is not None:
                continue
            behind -= 1
            if not draft.budget or not self._grant(seq, draft, behind):
                starved = True
        if starved:  # those who got nothing come first next time
            for chunk in draft.chunks:
                running[chunk.seq_id] = running.pop(chunk.seq_id)

    def _grant(self, seq: Seq, draft: Draft, behind: int = 0) -> bool:
        """Plan the next tokens of a running seq; False if a medium comes next for which there is no room.

        behind: how many of those who run come after it. Each is left a token, though not by who comes first and needs
        more for its medium, so that nobody waits for that forever.
        """
        tokens, start = seq.tokens, seq.computed
        end = min(start + seq.to_compute, start + max(1, draft.budget - behind))
        end = self._chunk_end(seq, start, end, draft.room - behind if draft.chunks else draft.room)
        if end == start:
            return False
        samples = end == len(tokens) < seq.max_len
        first = self._tables.grow(seq, end)
        if not seq.in_runner:
            seq.in_runner = True
            draft.started.append(seq.start())
            first = 0
        draft.chunks.append(Chunk(seq.id, start, tokens[start:end], seq.pages[first:], samples, first))
        if seq.cannot_fail and end // self._pool.page_size > seq.num_keyed:
            self._tables.publish(seq, end)  # so that who is planned after it in this step shares them already
        draft.budget = max(0, draft.budget - (end - start))
        draft.room -= end - start
        return True

    def _chunk_end(self, seq: Seq, start: int, end: int, room: int) -> int:
        """Where its chunk from `start` ends that should end at `end`; see `chunk_end`."""
        media = seq.group.request.prompt.media
        return chunk_end(media, start, end, room) if self._limits.whole_media and media else end

    def _admit(self, draft: Draft) -> None:
        """Bring in swapped seqs, then waiting ones; whoever does not fit keeps those behind it outside."""
        draft.blocked = False
        while draft.budget and (seq := self._next()) is not None:
            hits = self._fit(seq, draft)
            if hits is None:
                draft.blocked = True
                return
            family = self._roster.admit(seq, hits)
            for member in family:
                if not draft.budget or self._tables.need(member) > self._pool.available:
                    return  # a fork for which nothing is left waits a step; then `_make_room` comes first
                self._grant(member, draft)

    def _next(self) -> Seq | None:
        waiting = self._roster.waiting
        crowding = crowding_lanes(waiting.heads, self._roster.running.values(), self._limits.max_num_seqs)
        for queue, behind in ((self._roster.swapped, ()), (waiting, crowding)):
            closed: set[Lane] = set()
            for seq in queue.in_turn(behind, closed):
                ready = seq.candidates is None and self._ready(seq.group.request)
                if ready:
                    return seq
                if ready is None:
                    closed.add(seq.lane)
        return None

    def _fit(self, seq: Seq, draft: Draft) -> list[int] | None:
        """The cached pages a seq can begin with, or None if it does not fit now.

        It fits when there are pages for all its tokens, whatever part of them is computed first: nobody
        is begun only to be preempted, unless others generate more. No running seq still lacks pages for
        tokens it has, or the budget would be used up.
        """
        running, group, pool = self._roster.running, seq.group, self._pool
        if running and len(running) + self._reserved() + 1 + group.reserve > self._limits.max_num_seqs:
            return None
        hits = self._hits(seq)
        start = seq.computed if seq.status is Status.SWAPPED else len(hits) * pool.page_size
        if self._chunk_end(seq, start, min(seq.num_tokens, start + draft.budget), draft.room) == start:
            return None
        if not self._limits.chunked_prefill:
            rest = seq.to_compute - len(hits) * pool.page_size
            if draft.budget < rest <= self._limits.max_num_batched_tokens:
                return None
        idle = sum(pool.refs[page] == 0 for page in hits)
        need = pool.pages_for(seq.num_tokens) - len(hits) + idle
        spare = group.reserve + pool.num_pages // SPARE_SHARE if running else 0
        return hits if need + spare <= pool.available else None

    def _hits(self, seq: Seq) -> list[int]:
        """The cached pages a seq can begin with."""
        hits = self._tables.hits(seq, self._cacheable(seq))
        if self._limits.media_in_one and seq.status is not Status.SWAPPED:
            del hits[found_apart(seq.group.request.prompt.media, len(hits), self._pool.page_size) :]
        return hits

    def _reserved(self) -> int:
        groups = {seq.arrival: seq.group for seq in self._roster.running.values() if seq.group.reserve}
        return sum(group.reserve for group in groups.values())

    def _cacheable(self, seq: Seq) -> int:
        """How many of its first tokens need not be computed if the cache has them."""
        if seq.status is Status.SWAPPED:
            return seq.computed
        logprobs = seq.group.prompt_logprobs
        if logprobs is not None and len(logprobs) < seq.group.prompt_len:
            return 0  # they are asked for, and only computing gives them
        pooling = seq.group.pooling
        if pooling is not None and not pooling.reads_cache:
            return 0
        return seq.num_tokens - 1

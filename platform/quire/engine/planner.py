"""Planner: which tokens of which seqs the next step computes, and who gives up pages for them.

1. room: running seqs are preempted, as the policy says, until the others have pages for their tokens;
2. running seqs get a token each, and longer remainders share what is left of the budget;
3. swapped seqs come back, then waiting ones are admitted, while budget, places and pages last.

Victims are chosen before anything is planned, so nothing planned is ever taken back, and no page that
moves in a step moves twice. It knows no tensors and no tokens' meaning.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from quire.engine.candidates import Candidates
from quire.engine.chunk_ends import chunk_end, found_apart
from quire.engine.client_shares import ClientShares
from quire.engine.fairness import split
from quire.engine.roster import Roster
from quire.engine.seq import Seq, Status
from quire.errors import PluginFailed
from quire.types import Chunk, Plan, Request, SeqStart

log = logging.getLogger(__name__)

MIN_TOKENS = 8
"""Of each client in a step that brings in another's request."""

SPARE_SHARE = 100
"""One page in so many is kept for the growth of running seqs when another is admitted."""


@dataclass(slots=True)
class Draft:
    """A plan in the making.

    budget: tokens left. room: tokens that could be computed if need be, where a medium must be computed whole.
    blocked: the next seq had to stay outside for want of pages, places or budget. shares: tokens left by client, if
    several have work. late: clients that gave up places for this step, and so don't take them again.
    """

    budget: int
    room: int
    shares: dict[str, int] = field(default_factory=dict)
    late: set[str] = field(default_factory=set)
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
        self._candidates = Candidates(roster, ready)
        self._shares = ClientShares(roster)

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
        if len(roster.clients) > 1:
            draft.shares = split(limit, roster.clients.least_first(self._shares.demands(limit)))
            draft.late = self._make_place(draft.shares)
        self._grant_running(draft)
        self._admit(draft)
        if draft.shares and not draft.chunks:  # the clients that have tokens left cannot use them now
            draft.shares = {}
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

    def _make_place(self, shares: dict[str, int]) -> set[str]:
        """Preempt seqs of clients that have more than their share, until the next seq of another one fits.

        Only as many as bring their client down to its share, so that no two clients take places from each other in
        turn. Returns the clients of which some were preempted.
        """
        late: set[str] = set()
        seq = self._candidates.first(shares, late)
        counts = Counter(running.client for running in self._roster.running.values())
        if seq is None or counts[seq.client] >= self._shares.places:
            return late
        while self._roster.running and (client := self._in_the_way(seq, counts)) is not None:
            self._roster.preempt(self._victim(client))
            counts[client] -= 1
            late.add(client)
        for client in counts:
            if counts[client] > self._shares.places:  # the first step of the other's request is a short one
                shares[client] = min(shares[client], max(MIN_TOKENS, seq.num_tokens))
        return late

    def _in_the_way(self, seq: Seq, counts: Counter[str]) -> str | None:
        """The client above its share of what a waiting seq lacks; None if it lacks nothing, or no client is."""
        if self._shares.lacks_places(seq):
            return self._shares.with_most_places(seq, counts)
        lacks_pages = self._shares.lacks_pages(seq, self._hits(seq), self._pool.num_pages // SPARE_SHARE)
        return self._shares.with_most_pages(seq, counts) if lacks_pages else None

    def _victim(self, client: str | None = None) -> Seq:
        """The seq (of a client) that gives up its pages: the one that the policy says."""
        everyone = self._roster.running.values()
        running = [seq for seq in everyone if seq.client == client] if client is not None else everyone
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
            spent = bool(draft.shares) and draft.shares.get(seq.client, 0) <= 0
            if not draft.budget or spent or not self._grant(seq, draft, behind):
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
        most = min(draft.budget - behind, draft.shares.get(seq.client, draft.budget))
        end = min(start + seq.to_compute, start + max(1, most))
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
        if draft.shares:
            draft.shares[seq.client] = draft.shares.get(seq.client, 0) - (end - start)
            self._roster.clients.count(seq.client, end - start)
        return True

    def _chunk_end(self, seq: Seq, start: int, end: int, room: int) -> int:
        """Where its chunk from `start` ends that should end at `end`; see `chunk_end`."""
        media = seq.group.request.prompt.media
        return chunk_end(media, start, end, room) if self._limits.whole_media and media else end

    def _admit(self, draft: Draft) -> None:
        """Bring in swapped seqs, then waiting ones; whoever does not fit keeps those behind it outside."""
        draft.blocked = False
        while draft.budget and (seq := self._candidates.first(draft.shares, draft.late)) is not None:
            hits = self._fit(seq, draft)
            if hits is None:
                draft.blocked = True
                return
            family = self._roster.admit(seq, hits)
            for member in family:
                if not draft.budget or self._tables.need(member) > self._pool.available:
                    return  # a fork for which nothing is left waits a step; then `_make_room` comes first
                self._grant(member, draft)

    def _fit(self, seq: Seq, draft: Draft) -> list[int] | None:
        """The cached pages a seq can begin with, or None if it does not fit now.

        It fits when there are pages for all its tokens, whatever part of them is computed first: nobody
        is begun only to be preempted, unless others generate more. With one client no running seq still lacks
        pages for tokens it has, or the budget would be used up.
        """
        running, pool = self._roster.running, self._pool
        if running and self._shares.lacks_places(seq):
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
        spare = self._shares.reserve(seq.group) + pool.num_pages // SPARE_SHARE + self._shares.growth if running else 0
        return hits if need + spare <= pool.available else None

    def _hits(self, seq: Seq) -> list[int]:
        """The cached pages a seq can begin with."""
        hits = self._tables.hits(seq, self._cacheable(seq))
        if self._limits.media_in_one and seq.status is not Status.SWAPPED:
            del hits[found_apart(seq.group.request.prompt.media, len(hits), self._pool.page_size) :]
        return hits

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

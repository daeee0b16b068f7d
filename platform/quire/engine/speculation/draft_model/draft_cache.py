"""Which tokens of each sequence the draft model has keys and values of, and in which pages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from quire.engine.sampling.sampler import SamplingState
from quire.engine.scheduler.page_pool import PagePool
from quire.records import DraftQuery
from quire.types import Chunk


@dataclass(slots=True, eq=False)
class DraftSeq:
    """One sequence. num_known: its first tokens, which have K and V; those of `drafted` have them too, after these.

    num_entered: pages that the page table has. num_output: tokens generated so far. length: all tokens so far.
    num_drafts: to draft in this step. drafts: of this step. probs: float32 [vocab] of each that was sampled, if they
    are needed.
    """

    id: int
    sampling: SamplingState
    num_known: int = 0
    drafted: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    num_entered: int = 0
    num_output: int = 0
    length: int = 0
    num_drafts: int = 0
    drafts: list[int] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)

    def roll_back(self, token_ids: Sequence[int]) -> None:
        """Keep K and V of drafts that are output now; the last token is computed again if it was drafted."""
        known = self.num_known
        for token in self.drafted:
            if known >= len(token_ids) or token_ids[known] != token:
                break
            known += 1
        self.num_known = min(known, len(token_ids) - 1)
        self.drafted.clear()

    def chunk(self, start: int, token_ids: Sequence[int], samples: bool) -> Chunk:
        """The chunk that computes these tokens; it carries the pages that the page table does not have yet."""
        first, self.num_entered = self.num_entered, len(self.pages)
        return Chunk(self.id, start, token_ids, self.pages[first:], samples, first)

    def draft_chunk(self) -> Chunk:
        """The chunk of the drafts of this step, none of which is known yet."""
        return self.chunk(self.length, (0,) * self.num_drafts, samples=True)

    def append(self, token: int) -> bool:
        """Add a draft, unless the token is -1. Whether it will be computed, so that another one can follow."""
        if token < 0:
            return False
        self.drafts.append(token)
        if len(self.drafts) == self.num_drafts:
            return False
        self.drafted.append(token)
        return True

    def extend(self, tokens: Iterable[int]) -> bool:
        """Add drafts until one is -1 or the last. Whether another one can follow."""
        return all(self.append(token) for token in tokens)


class DraftCache:
    """The sequences of a draft model.

    feed_tokens: of sequences that lag behind, computed in a step; a sequence may always compute `max_drafts` + 1.
    started, ended: called with a sequence that gets pages for the first time, and with its id when it loses them.

    If pages are used up, those that were not asked for the longest time lose theirs; a sequence that still finds no
    pages for all of its tokens gets no drafts.
    """

    def __init__(
        self,
        pool: PagePool,
        max_model_len: int,
        max_drafts: int,
        feed_tokens: int,
        started: Callable[[DraftSeq, DraftQuery], None],
        ended: Callable[[int], None],
    ) -> None:
        self._pool, self._max_model_len = pool, max_model_len
        self._min_chunk, self._feed_tokens = max_drafts + 1, feed_tokens
        self._started, self._ended = started, ended
        self._seqs: OrderedDict[int, DraftSeq] = OrderedDict()  # the longest unasked first

    def __len__(self) -> int:
        return len(self._seqs)

    def max_step_tokens(self, num_seqs: int) -> int:
        """Most tokens of a step with so many sequences."""
        return num_seqs * self._min_chunk + self._feed_tokens

    def end(self, seq_id: int) -> None:
        """Free the pages of a sequence, if there is one."""
        seq = self._seqs.pop(seq_id, None)
        if seq is not None:
            self._pool.free(seq.pages)
            self._ended(seq_id)

    def clear(self) -> None:
        for seq_id in list(self._seqs):
            self.end(seq_id)

    def plan(self, queries: Sequence[DraftQuery]) -> list[tuple[DraftSeq, Chunk]]:
        """The chunks of tokens without K and V, those of the sequences that lag least first."""
        asked = {query.seq_id for query in queries}
        lagging = [(self._lag(query), i) for i, query in enumerate(queries)]
        budget, found = self._feed_tokens, []
        for lag, i in sorted(lagging):
            query = queries[i]
            seq = self._with_pages(query, asked)
            if seq is not None:
                count = min(lag, max(budget, self._min_chunk))
                start, seq.num_known = seq.num_known, seq.num_known + count
                chunk = seq.chunk(start, query.token_ids[start : seq.num_known], samples=count == lag)
                found.append((seq, chunk))
                budget -= count
        return found

    def _lag(self, query: DraftQuery) -> int:
        seq = self._seqs.get(query.seq_id)
        if seq is None:
            return len(query.token_ids)
        seq.roll_back(query.token_ids)
        return len(query.token_ids) - seq.num_known

    def _with_pages(self, query: DraftQuery, asked: Collection[int]) -> DraftSeq | None:
        """The sequence with pages for its tokens and drafts; None if it cannot have them."""
        length = len(query.token_ids)
        num_drafts = min(query.max_drafts, self._max_model_len - length)
        if num_drafts < 1:
            self.end(query.seq_id)
            return None
        seq = self._seqs.get(query.seq_id)
        missing = self._pool.pages_for(length + num_drafts) - (len(seq.pages) if seq is not None else 0)
        if not self._make_room(missing, asked):
            return None
        if seq is None:
            seq = self._seqs[query.seq_id] = DraftSeq(query.seq_id, SamplingState(query.params, query.seed, []))
            self._started(seq, query)
        self._seqs.move_to_end(seq.id)
        seq.pages += self._pool.allocate(max(0, missing))
        seq.length, seq.num_output = length, length - query.prompt_len
        seq.num_drafts, seq.drafts, seq.probs = num_drafts, [], []
        return seq

    def _make_room(self, count: int, asked: Collection[int]) -> bool:
        """Whether there are so many pages, after sequences that are not asked for lost theirs."""
        if count > self._pool.available:
            for seq_id in [each for each in self._seqs if each not in asked]:
                self.end(seq_id)
                if count <= self._pool.available:
                    break
        return count <= self._pool.available

"""Page tables: the pages of each sequence, and the page copies and swaps that the next plan carries.

All changes of `Seq.pages`, `Seq.host_pages` and `Seq.num_registered` happen here. Between steps a sequence holds
exactly the pages of its positions that are computed or in flight. The diagram in the docstring of the package shows
who owns which.
"""

from __future__ import annotations

from quire.engine.recurrent.state_slots import StateSlots
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.seq import Seq

Moves = list[tuple[int, int]]


class PageTables:
    """Page tables over a pool on the device and, for swapped sequences, a pool in host memory.

    states: slots for the state of the sequences; None for models without state.
    """

    def __init__(self, pool: PagePool, host_pool: PagePool, states: StateSlots | None = None) -> None:
        self.pool = pool
        self.host_pool = host_pool
        self.states = states
        self._copies: Moves = []
        self._swaps_out: Moves = []
        self._swaps_in: Moves = []

    def drain_moves(self) -> tuple[Moves, Moves, Moves]:
        """Copies, swaps out and swaps in since the last call, as pairs of source and destination."""
        moves = self._copies, self._swaps_out, self._swaps_in
        self._copies, self._swaps_out, self._swaps_in = [], [], []
        return moves

    def num_pages_needed(self, seq: Seq) -> int:
        """Pages to allocate, at most, until every token of a running seq has a slot that the seq may write."""
        if seq.candidates is not None:
            return 0
        pages, size = seq.pages, self.pool.page_size
        num_missing = max(0, -(-(len(seq.tokens) + seq.num_unknown) // size) - len(pages))
        tail = (seq.computed + seq.in_flight) // size
        return num_missing + 1 if tail < len(pages) and self.pool.refs[pages[tail]] > 1 else num_missing

    def extend_table(self, seq: Seq, end: int) -> int:
        """Make the next positions, up to `end` - 1, writable. Returns the first entry of the table that changed.

        Only the last page can be partly filled. It is copied before this seq writes to it if other seqs refer to it
        too; the last seq that refers to it writes in place.
        """
        pages, pool = seq.pages, self.pool
        changed = len(pages)
        tail = (seq.computed + seq.in_flight) // pool.page_size
        if tail < changed and pool.refs[pages[tail]] > 1:
            (own,) = pool.allocate(1)
            self._copies.append((pages[tail], own))
            pool.free((pages[tail],))
            pages[tail] = own
            changed = tail
        self.append_pages(seq, end)
        return changed

    def append_pages(self, seq: Seq, end: int) -> None:
        """Let its table reach to position `end` - 1."""
        num_missing = -(-end // self.pool.page_size) - len(seq.pages)
        if num_missing > 0:
            seq.pages.extend(self.pool.allocate(num_missing))

    def settle(self, seq: Seq, num_accepted: int) -> None:
        """Go on behind the accepted drafts of a chunk, without the pages of the rejected ones.

        A state that saw rejected drafts goes back to the start of the chunk: its tokens are computed again.
        """
        rewound = None if self.states is None else self.states.settle(seq, num_accepted)
        seq.computed = seq.computed + num_accepted if rewound is None else rewound
        seq.num_registered = min(seq.num_registered, seq.computed // self.pool.page_size)
        num_pages = self.pool.pages_for(seq.computed)
        self.pool.free(seq.pages[num_pages:])
        del seq.pages[num_pages:]

    def fork(self, parent: Seq, child: Seq) -> None:
        """Let the child begin where the parent is, on the same pages."""
        self.pool.incref(parent.pages)
        child.pages = list(parent.pages)
        child.computed, child.num_registered = parent.computed, parent.num_registered
        if self.states is not None:
            self.states.fork(parent, child)

    def free(self, seq: Seq) -> None:
        """Free the pages of a seq on the device and in host memory; none of its tokens is computed any more."""
        self.pool.free(seq.pages)
        self.host_pool.free(seq.host_pages)
        seq.pages, seq.host_pages = [], []
        seq.computed = seq.num_registered = seq.in_flight = seq.num_unknown = 0
        if self.states is not None:
            self.states.free(seq)

    def match_prefix(self, seq: Seq, num_tokens: int) -> list[int]:
        """Cached pages that hold the beginning of its first `num_tokens` tokens."""
        if not self.pool.caching:
            return []
        pages: list[int] = []
        for i in range(num_tokens // self.pool.page_size):
            page = self.pool.lookup(seq.page_hash(i, self.pool.page_size))
            if page is None:
                break
            pages.append(page)
        return pages

    def attach_cached(self, seq: Seq, hits: list[int]) -> None:
        """Begin a seq without pages on cached ones, behind the positions that are not computed."""
        self.pool.incref(hits)
        seq.num_registered = len(hits)
        seq.computed = max(len(hits) * self.pool.page_size, seq.group.request.prompt.num_given)
        seq.pages = hits + self.pool.allocate(self.pool.pages_for(seq.computed) - len(hits))
        if self.states is not None:
            self.states.begin(seq, len(hits))

    def swap_out(self, seq: Seq) -> None:
        """Move its pages to host memory, which must have enough free pages."""
        seq.host_pages = self.host_pool.allocate(len(seq.pages))
        self._swaps_out.extend(zip(seq.pages, seq.host_pages, strict=True))
        self.pool.free(seq.pages)
        seq.pages = []
        if self.states is not None:
            self.states.swap_out(seq)

    def can_swap(self, seq: Seq) -> bool:
        """Whether a running seq has pages, and host memory has room for them and for its state."""
        fits = 0 < len(seq.pages) <= self.host_pool.available
        return fits and (self.states is None or self.states.can_swap(seq))

    def swap_in(self, seq: Seq, hits: list[int]) -> None:
        """Bring its pages back from host memory, except for `hits`, which are still cached on the device."""
        self.pool.incref(hits)
        own = self.pool.allocate(len(seq.host_pages) - len(hits))
        self._swaps_in.extend(zip(seq.host_pages[len(hits) :], own, strict=True))
        self.host_pool.free(seq.host_pages)
        seq.host_pages = []
        seq.pages = hits + own
        seq.num_registered = len(hits)
        if self.states is not None:
            self.states.swap_in(seq)

    def register(self, seq: Seq, end: int) -> None:
        """Register its pages that are full once positions up to `end` - 1 are computed.

        That may be before they are computed: a step writes the keys and values of all chunks before it reads any.
        """
        size = self.pool.page_size
        if self.pool.caching:
            for i in range(seq.num_registered, end // size):
                if self.pool.register(seq.pages[i], seq.page_hash(i, size)) and self.pool.log is not None:
                    self.pool.log.stored(seq, i)
        seq.num_registered = max(seq.num_registered, end // size)

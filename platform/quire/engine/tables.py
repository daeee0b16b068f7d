"""PageTables: which pages each seq holds, and the movements of pages that the next plan must carry.

All changes of `Seq.pages`, `Seq.host_pages` and `Seq.num_keyed` happen here. Between steps a seq
holds exactly the pages that its computed positions fill. It decides nothing: the scheduler says when.
"""

from __future__ import annotations

from quire.engine.pages import PagePool
from quire.engine.seq import Seq

Moves = list[tuple[int, int]]


class PageTables:
    """Page tables over a device pool and, for seqs that were swapped out, a host pool."""

    def __init__(self, pool: PagePool, host_pool: PagePool) -> None:
        self.pool = pool
        self.host_pool = host_pool
        self._copies: Moves = []
        self._swaps_out: Moves = []
        self._swaps_in: Moves = []

    def moves(self) -> tuple[Moves, Moves, Moves]:
        """Copies, swaps out and swaps in since the last call, as pairs of source and destination."""
        moves = self._copies, self._swaps_out, self._swaps_in
        self._copies, self._swaps_out, self._swaps_in = [], [], []
        return moves

    def need(self, seq: Seq) -> int:
        """Pages it takes at most to give every token of a running seq a slot that it may write."""
        if seq.candidates is not None:
            return 0
        pages, size = seq.pages, self.pool.page_size
        need = -(-len(seq.tokens) // size) - len(pages)
        tail = seq.computed // size
        return need + 1 if tail < len(pages) and self.pool.refs[pages[tail]] > 1 else need

    def grow(self, seq: Seq, end: int) -> int:
        """Make positions computed … end - 1 writable; the first entry of the table that changed.

        Only the last page can be partly filled. While others refer to it too, it is copied before
        this seq writes into it; whoever is left alone with it writes in place.
        """
        pages, pool = seq.pages, self.pool
        changed = len(pages)
        more = -(-end // pool.page_size) - changed
        tail = seq.computed // pool.page_size
        if tail < changed and pool.refs[pages[tail]] > 1:
            (own,) = pool.take(1)
            self._copies.append((pages[tail], own))
            pool.release((pages[tail],))
            pages[tail] = own
            changed = tail
        if more > 0:
            pages.extend(pool.take(more))
        return changed

    def fork(self, parent: Seq, child: Seq) -> None:
        """Let the child begin where the parent is, on the same pages."""
        self.pool.share(parent.pages)
        child.pages = list(parent.pages)
        child.computed, child.num_keyed = parent.computed, parent.num_keyed

    def drop(self, seq: Seq) -> None:
        """Give back all it holds, here and on the host; nothing of it is computed any more."""
        self.pool.release(seq.pages)
        self.host_pool.release(seq.host_pages)
        seq.pages, seq.host_pages = [], []
        seq.computed = seq.num_keyed = 0

    def hits(self, seq: Seq, num_tokens: int) -> list[int]:
        """Cached pages that hold the beginning of its first `num_tokens` tokens."""
        if not self.pool.caching:
            return []
        pages: list[int] = []
        for i in range(num_tokens // self.pool.page_size):
            page = self.pool.find(seq.key_of(i, self.pool.page_size))
            if page is None:
                break
            pages.append(page)
        return pages

    def adopt(self, seq: Seq, hits: list[int]) -> None:
        """Begin a seq that holds nothing with cached pages."""
        self.pool.share(hits)
        seq.pages = hits
        seq.num_keyed = len(hits)
        seq.computed = len(hits) * self.pool.page_size

    def swap_out(self, seq: Seq) -> None:
        """Move its pages to the host, which must have room."""
        seq.host_pages = self.host_pool.take(len(seq.pages))
        self._swaps_out.extend(zip(seq.pages, seq.host_pages, strict=True))
        self.pool.release(seq.pages)
        seq.pages = []

    def swap_in(self, seq: Seq, hits: list[int]) -> None:
        """Bring its pages back; those that are still cached need not travel."""
        self.pool.share(hits)
        own = self.pool.take(len(seq.host_pages) - len(hits))
        self._swaps_in.extend(zip(seq.host_pages[len(hits) :], own, strict=True))
        self.host_pool.release(seq.host_pages)
        seq.host_pages = []
        seq.pages = hits + own
        seq.num_keyed = len(hits)

    def publish(self, seq: Seq, end: int) -> None:
        """Let others find its pages that are full once positions up to `end` - 1 are computed.

        That may be before they are: in a step, keys and values of all chunks are written before any is read.
        """
        size = self.pool.page_size
        if self.pool.caching:
            for i in range(seq.num_keyed, end // size):
                self.pool.publish(seq.pages[i], seq.key_of(i, size))
        seq.num_keyed = max(seq.num_keyed, end // size)

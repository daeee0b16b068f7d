"""The pool of KV pages as numbers: which are free, who refers to each, which can be found by key.

It knows neither tensors nor seqs nor what a key is made of; `quire.engine.tables` says who holds what.

A page is in exactly one of three states:

    free ──take──▶ referenced ──release──▶ free            (no key)
                       ▲  └─────release──▶ idle (keyed) ──take, least recently used──▶ referenced
                       └──────share─────────┘
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class PagePool:
    """Hands out page numbers 0 … num_pages - 1, counts references, remembers keyed pages.

    `caching` off: pages cannot be keyed, and a released page is free at once.
    `refs[page]` is the number of seqs that list the page; only this class changes it.
    """

    def __init__(self, num_pages: int, page_size: int, caching: bool = True) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.caching = caching
        self.refs = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # keyed pages without references, oldest first
        self._key_of: list[bytes | None] = [None] * num_pages
        self._page_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Pages that `take` can give: free ones and cached ones that nobody refers to."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Pages that some seq refers to."""
        return self.num_pages - len(self._free) - len(self._idle)

    @property
    def num_idle(self) -> int:
        """Cached pages that nobody refers to."""
        return len(self._idle)

    def pages_for(self, num_tokens: int) -> int:
        """How many pages that many positions fill."""
        return -(-num_tokens // self.page_size)

    def take(self, count: int) -> list[int]:
        """`count` pages with one reference each; free ones first, then the least recently used idle ones."""
        assert count <= self.available, f"{count} pages wanted, {self.available} available"
        free, refs = self._free, self.refs
        pages = []
        for _ in range(count):
            page = free.pop() if free else self._evict()
            refs[page] = 1
            pages.append(page)
        return pages

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        key = self._key_of[page]
        assert key is not None, "an idle page has a key"
        del self._page_of[key]
        self._key_of[page] = None
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One more reference on each page; idle ones come back into use."""
        for page in pages:
            if self.refs[page] == 0:
                del self._idle[page]
            self.refs[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """One reference less on each page of a page table.

        The last page goes first: the end of a prefix is evicted before what it needs in front of it.
        """
        refs = self.refs
        for page in reversed(pages):
            assert refs[page] > 0, f"page {page} is released but nobody holds it"
            refs[page] -= 1
            if refs[page] == 0:
                if self._key_of[page] is None:
                    self._free.append(page)
                else:
                    self._idle[page] = None

    def find(self, key: bytes) -> int | None:
        """The page with this key, in use or idle."""
        return self._page_of.get(key)

    def publish(self, page: int, key: bytes) -> None:
        """Let others find a full page by its key; an equal page that is there already stays the one found."""
        if self.caching and key not in self._page_of and self._key_of[page] is None:
            assert self.refs[page] > 0, f"page {page} is keyed while nobody holds it"
            self._key_of[page] = key
            self._page_of[key] = page

    def forget(self) -> int:
        """Free every idle page and hide the keyed ones in use; the number of pages freed."""
        count = len(self._idle)
        self._free.extend(self._idle)
        self._idle.clear()
        self._page_of.clear()
        self._key_of = [None] * self.num_pages
        return count

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Assert every invariant, given the page tables of all seqs that hold pages here."""
        held = Counter(page for table in holders for page in table)
        assert all(self.refs[page] == held[page] for page in range(self.num_pages)), (
            "references = tables listing a page"
        )
        assert len(set(self._free)) == len(self._free), "a page is free once"
        assert len(self._free) + len(self._idle) + len(held) == self.num_pages, "free + idle + held = all pages"
        assert not held.keys() & (self._idle.keys() | set(self._free)), "a held page is neither free nor idle"
        assert not self._idle.keys() & set(self._free), "an idle page is not free"
        keyed = {page: key for page, key in enumerate(self._key_of) if key is not None}
        assert {key: page for page, key in keyed.items()} == self._page_of, "keys and pages correspond"
        assert self._idle.keys() <= keyed.keys(), "an idle page has a key"
        assert not keyed.keys() & set(self._free), "a free page has none"

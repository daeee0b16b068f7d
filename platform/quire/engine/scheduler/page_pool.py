"""The pool of KV pages as numbers: free pages, reference counts, and the prefix cache (pages by hash).

A page is in one of three states:

    free ──allocate──▶ referenced ──free──▶ free                   (not registered)
                         ▲  └────────free──▶ idle (registered) ──allocate, least recently used──▶ referenced
                         └────────incref──────┘

Equal hashes of pages mean equal K and V, so all that changes K or V is hashed:
hash of page i = H(hash of page i-1, token ids, digests and offsets of the media that touch the page); the hash before
page 0 covers the adapters with their revisions and weights, and the cache salt.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from quire.engine.kv_events.page_log import PageListener
from quire.types import Media, WeightedAdapter

HASH_BYTES = 16


class PagePool:
    """Page numbers 0 … num_pages - 1 with their reference counts and hashes.

    caching: off, pages cannot be registered, and a page without references is free at once. log: of the prefix cache.
    refs[page]: sequences whose page table lists the page; only this class changes it.
    """

    def __init__(self, num_pages: int, page_size: int, caching: bool = True, log: PageListener | None = None) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.caching, self.log = caching, log
        self.refs = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # registered pages without references, oldest first
        self._hash_of: list[bytes | None] = [None] * num_pages
        self._page_of: dict[bytes, int] = {}

    @property
    def available(self) -> int:
        """Pages that `allocate` can give: free ones and idle ones."""
        return len(self._free) + len(self._idle)

    @property
    def num_used(self) -> int:
        """Pages that sequences refer to."""
        return self.num_pages - len(self._free) - len(self._idle)

    @property
    def num_idle(self) -> int:
        """Cached pages without references."""
        return len(self._idle)

    def pages_for(self, num_tokens: int) -> int:
        """Pages for that many positions."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
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
        page_hash = self._hash_of[page]
        assert page_hash is not None, "an idle page has a hash"
        del self._page_of[page_hash]
        self._hash_of[page] = None
        if self.log is not None:
            self.log.removed(page_hash)
        return page

    def incref(self, pages: Iterable[int]) -> None:
        """Add a reference to each page; idle ones come back into use."""
        for page in pages:
            if self.refs[page] == 0:
                del self._idle[page]
            self.refs[page] += 1

    def free(self, pages: Sequence[int]) -> None:
        """Drop a reference to each page of a page table.

        The last page goes first, so that the end of a prefix is evicted before the pages that it depends on.
        """
        refs = self.refs
        for page in reversed(pages):
            assert refs[page] > 0, f"page {page} is freed but has no reference"
            refs[page] -= 1
            if refs[page] == 0:
                if self._hash_of[page] is None:
                    self._free.append(page)
                else:
                    self._idle[page] = None

    def lookup(self, page_hash: bytes) -> int | None:
        """The page with this hash, in use or idle."""
        return self._page_of.get(page_hash)

    def register(self, page: int, page_hash: bytes) -> bool:
        """Put a full page into the prefix cache, unless an equal page is there. Returns whether it was put there."""
        if not self.caching or page_hash in self._page_of or self._hash_of[page] is not None:
            return False
        assert self.refs[page] > 0, f"page {page} is registered but has no reference"
        self._hash_of[page] = page_hash
        self._page_of[page_hash] = page
        return True

    def reset(self) -> int:
        """Empty the prefix cache: free every idle page, unregister those in use. Returns the number of pages freed."""
        count = len(self._idle)
        self._free.extend(self._idle)
        self._idle.clear()
        self._page_of.clear()
        self._hash_of = [None] * len(self.refs)
        if self.log is not None:
            self.log.cleared()
        return count


def hash_root(adapters: Sequence[WeightedAdapter], salt: str | None) -> bytes:
    """The parent of the first page's hash. No salt and an empty one differ; lengths keep fields apart."""
    uses = [f"{use.ref.revision}:{use.weight!r}:{use.ref.name}" for use in adapters]
    fields = [text.encode("utf-8", "surrogatepass") for text in (*uses, *(() if salt is None else (salt,)))]
    lengths = array("q", [len(uses), len(fields), *map(len, fields)]).tobytes()
    return blake2b(lengths + b"".join(fields), digest_size=HASH_BYTES).digest()


def hash_page(parent: bytes, token_ids: Sequence[int], start: int, media: Sequence[Media] = ()) -> bytes:
    """Hash of the full page that holds `token_ids`, the first of them at position `start`."""
    hasher = blake2b(parent, digest_size=HASH_BYTES)
    hasher.update(array("q", token_ids).tobytes())
    end = start + len(token_ids)
    for item in media:
        if item.start < end and item.start + item.length > start:
            digest = item.digest.encode("utf-8", "surrogatepass")
            hasher.update(array("q", [len(digest), item.start - start, item.length]).tobytes() + digest)
    return hasher.digest()

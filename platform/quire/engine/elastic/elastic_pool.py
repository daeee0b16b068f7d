"""A page pool whose number of usable pages changes while sequences run."""

from __future__ import annotations

from collections.abc import Sequence

from quire.engine.kv_events.page_log import PageListener
from quire.engine.scheduler.page_pool import PagePool


class ElasticPagePool(PagePool):
    """Pages 0 … num_pages - 1 can be allocated, of `capacity`. Pages above that are in use until their sequences end.

    num_over: pages in use that are not usable anymore.
    """

    def __init__(
        self, num_pages: int, page_size: int, caching: bool = True, log: PageListener | None = None, *, capacity: int
    ) -> None:
        super().__init__(capacity, page_size, caching, log)
        self.capacity, self.num_over = capacity, 0
        self.num_pages = num_pages
        del self._free[: capacity - num_pages]
        self._released: list[int] = []

    @property
    def num_used(self) -> int:
        """Pages that sequences refer to."""
        return self.num_pages + self.num_over - len(self._free) - len(self._idle)

    def resize(self, num_pages: int) -> None:
        """Change the number of usable pages. Cached pages above it are forgotten."""
        assert 0 < num_pages <= self.capacity
        before, self.num_pages = self.num_pages, num_pages
        self.num_over = sum(count > 0 for count in self.refs[num_pages:])
        if num_pages > before:
            added = [page for page in range(before, num_pages) if not self.refs[page]]
            self._free[:0] = reversed(added)
        else:
            self._withdraw()

    def free(self, pages: Sequence[int]) -> None:
        """Drop a reference to each page of a page table, as `PagePool.free` does."""
        super().free(pages)
        if self.num_over:
            self._withdraw()
            self.num_over = sum(count > 0 for count in self.refs[self.num_pages :])

    def drain_released(self) -> list[int]:
        """Pages that stopped to be usable since the last call and have no contents anymore, in ascending order."""
        released, self._released = self._released, []
        return sorted(page for page in released if page >= self.num_pages and not self.refs[page])

    def _withdraw(self) -> None:
        """Take the pages without references that are not usable out of the pool."""
        free = [page for page in self._free if page >= self.num_pages]
        idle = [page for page in self._idle if page >= self.num_pages]
        if free:
            self._free = [page for page in self._free if page < self.num_pages]
        for page in idle:
            self._idle.move_to_end(page, last=False)
            self._evict()
        self._released += free + idle

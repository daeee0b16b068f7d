"""The search for the pages of one prompt in the tiers, in a thread beside the steps."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from enum import Enum
from threading import Event

from quire.engine.kv_tiers.keys import PageKeys, seq_of
from quire.engine.kv_tiers.page_contents import ReadPages, bytes_of_page
from quire.engine.kv_tiers.rates import Rates
from quire.engine.kv_tiers.tier_stack import TierStack
from quire.engine.scheduler.page_pool import PagePool
from quire.engine.scheduler.seq import Seq
from quire.types import Request
from quire_models import KVCache

log = logging.getLogger(__name__)

INDEX_S = 0.25
"""Longest time that a request waits to know whether its pages are in a tier."""

MAX_READ_S = 10.0
"""Longest time that a request waits for pages if it is not known how long computing them takes."""

MAX_READ_BYTES = 512 << 20
"""Of the pages of one prompt that are in host memory at once."""


class LookupState(Enum):
    """PENDING ─▶ FOUND or NOTHING."""

    PENDING = "pending"
    FOUND = "found"
    NOTHING = "nothing"


@dataclass(slots=True, eq=False)
class Lookup:
    """One search. seq: for the hashes of the prompt's pages. num_pages: that may be found.

    deadline: monotonic time until which the request waits. first: number of the first page of `pages` in the prompt;
    num_put: how many of them are in the device's cache already. wanted: the request could be scheduled now.
    """

    request: Request
    seq: Seq
    num_pages: int
    deadline: float
    state: LookupState = LookupState.PENDING
    pages: ReadPages | None = None
    first: int = 0
    num_put: int = 0
    wanted: bool = False
    given_up: bool = False
    done: Event = field(default_factory=Event)

    @classmethod
    def begin(cls, request: Request, num_pages: int) -> Lookup:
        seq = seq_of(request, list(request.prompt.token_ids))
        return cls(request, seq, num_pages, time.monotonic() + INDEX_S)


@dataclass(frozen=True)
class LookupWork:
    """What a search needs."""

    stack: TierStack
    keys: PageKeys
    pool: PagePool
    kv: KVCache
    rates: Rates

    def run(self, lookup: Lookup) -> None:
        """Search; the state is set at the end, whatever happens."""
        try:
            found = not lookup.given_up and self._read(lookup)
        except Exception:  # the prompt is computed
            log.exception("KV pages could not be looked up in the tiers")
            found = False
        lookup.state = LookupState.FOUND if found else LookupState.NOTHING
        lookup.done.set()

    def _read(self, lookup: Lookup) -> bool:
        size, seq = self.pool.page_size, lookup.seq
        while lookup.first < lookup.num_pages and self._is_on_device(seq, lookup.first):
            lookup.first += 1
        if lookup.first == lookup.num_pages:
            return False
        if lookup.request.adapters and not self.keys.read_adapters(lookup.request):
            return False
        keys = self.keys.of_prompt(lookup.request, lookup.num_pages)
        if keys is None:
            return False
        per_page = bytes_of_page(self.kv)
        keys = keys[lookup.first :][: max(1, MAX_READ_BYTES // per_page)]
        places = self.stack.find(keys)
        keys = keys[: len(places)]
        if not keys or not self.rates.should_read(len(keys) * size, len(keys) * per_page):
            return False
        began = time.monotonic()
        lookup.deadline = began + min(self.rates.compute_s(len(keys) * size) or MAX_READ_S, MAX_READ_S)
        read = self.stack.get(keys, places, lookup.deadline)
        payloads = [page.payload for page in read]
        for i, payload in enumerate(payloads):
            if len(payload) != per_page:
                del payloads[i:]
                break
        if not payloads:
            return False
        lookup.pages = ReadPages.from_payloads(self.kv, payloads)
        self.rates.read(len(payloads) * per_page, time.monotonic() - began)
        self.stack.promote(keys, places, read[: len(payloads)])
        return True

    def _is_on_device(self, seq: Seq, page: int) -> bool:
        return self.pool.lookup(seq.page_hash(page, self.pool.page_size)) is not None

"""The tiers of one model, as its engine uses them: all methods are called by the thread of the steps."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from functools import partial

from quire.engine.kv_events.page_log import PageListener
from quire.engine.kv_tiers.daemon_threads import DaemonThreads
from quire.engine.kv_tiers.keys import PageKeys
from quire.engine.kv_tiers.lookup import Lookup, LookupState, LookupWork
from quire.engine.kv_tiers.model_scope import ModelScope
from quire.engine.kv_tiers.page_contents import CopiedPages, bytes_of_page
from quire.engine.kv_tiers.page_writer import PageName, PageWriter
from quire.engine.kv_tiers.rates import Rates
from quire.engine.kv_tiers.tier_stack import TierStack
from quire.engine.runner.model_runner import ModelRunner
from quire.engine.scheduler.candidates import Admission, TryAdmit
from quire.engine.scheduler.scheduler import Scheduler
from quire.engine.scheduler.seq import Seq
from quire.errors import QuireError
from quire.params.pooling import PoolingParams
from quire.params.sampling import SamplingParams
from quire.types import KvTiersStats, Request

MAX_QUEUED_BYTES = 256 << 20
"""Of copied pages that wait to be written."""

MAX_PUT_BYTES = 64 << 20
"""Of pages that are put into the device's cache between two steps."""

COPIED_TOGETHER = 32
"""Pages that are copied at a time while steps go on: each copy takes an operation for each tensor of the cache."""

MAX_STEPS = 32
"""Steps after which fewer pages are copied."""

IDLE_WAIT_S = 0.005
NUM_LOOKUPS = 2
FLUSH_S = 5.0
"""Longest wait for queued pages to be written when a model is closed."""


@dataclass(frozen=True, slots=True)
class _Filled:
    """A page that entered the prefix cache. step: number of the step that was planned or committed then."""

    step: int
    page: int
    page_hash: bytes
    name: PageName


class KvTiers:
    """A `PageListener` that stores pages, and what finds them again.

    page_log: a listener that hears of the same pages. stack: None = there are no tiers, and every method does nothing.
    scope: finds the digest of the model. closes_stack: the tiers belong to this model alone.
    """

    def __init__(
        self,
        stack: TierStack | None,
        keys: PageKeys,
        page_log: PageListener | None,
        scope: ModelScope | None = None,
        closes_stack: bool = False,
    ) -> None:
        self._stack, self._keys, self._log = stack, keys, page_log
        self._scope, self._closes_stack = scope, closes_stack
        self._filled: deque[_Filled] = deque()
        self._lookups: dict[str, Lookup] = {}
        self._searches = DaemonThreads("kv-lookups", NUM_LOOKUPS)
        self._rates = Rates()
        self._step, self._busy_since = 0, time.perf_counter()
        self._queried_tokens = self._hit_tokens = 0

    @property
    def listener(self) -> PageListener | None:
        """What the page pool reports to."""
        return self._log if self._stack is None else self

    def attach(self, scheduler: Scheduler, runner: ModelRunner) -> KvTiers:
        """Set what exists only once the engine is built."""
        self._pool, self._scheduler = scheduler.pool, scheduler
        self._kv, self._max_in_flight = runner.kv, runner.max_in_flight
        if self._stack is not None:
            self._page_bytes = bytes_of_page(self._kv)
            self._writer = PageWriter(self._stack, self._page_bytes, MAX_QUEUED_BYTES)
            self._work = LookupWork(self._stack, self._keys, self._pool, self._kv, self._rates)
        return self

    # --- what the page pool reports -----------------------------------------------------------------------

    def stored(self, seq: Seq, index: int) -> None:
        """A page of a seq entered the prefix cache; perhaps it is computed only later."""
        if self._log is not None:
            self._log.stored(seq, index)
        ttl = seq.group.request.cache_ttl
        if ttl == 0 or (key := self._keys.key(seq, index)) is None:
            return
        name = PageName(key, None if ttl is None else time.time() + ttl)
        self._filled.append(_Filled(self._step, seq.pages[index], seq.page_hashes[index], name))

    def removed(self, page_hash: bytes) -> None:
        """A page left the prefix cache."""
        if self._log is not None:
            self._log.removed(page_hash)

    def cleared(self) -> None:
        """All pages left the prefix cache, perhaps because they were not computed."""
        self._filled.clear()
        if self._log is not None:
            self._log.cleared()

    # --- requests -----------------------------------------------------------------------------------------

    def look_up(self, request: Request) -> None:
        """Begin a search for the pages of a prompt that was queued."""
        if self._stack is None:
            return
        self._busy_since = time.perf_counter()
        num_pages = (len(request.prompt.token_ids) - 1) // self._pool.page_size
        if num_pages > 0 and _may_skip_prompt(request) and self._keys.scope is not None:
            lookup = self._lookups[request.id] = Lookup.begin(request, num_pages)
            self._searches.submit(partial(self._work.run, lookup))

    def admits(self, try_admit: TryAdmit) -> TryAdmit:
        """`try_admit` for requests whose search has ended, and whose pages are on the device."""
        return try_admit if self._stack is None else partial(self._try_admit, try_admit)

    def _try_admit(self, try_admit: TryAdmit, request: Request) -> Admission | QuireError:
        lookup = self._lookups.get(request.id)
        if lookup is None:
            return try_admit(request)
        if lookup.state is LookupState.PENDING and time.monotonic() < lookup.deadline:
            return Admission.WAIT
        if lookup.state is not LookupState.FOUND:
            lookup.given_up = True
            self._end(lookup)
            return try_admit(request)
        admission = try_admit(request)
        if admission is Admission.READY:  # pages are put into the cache between two steps
            lookup.wanted = True
            return Admission.WAIT
        return admission

    def _end(self, lookup: Lookup) -> None:
        del self._lookups[lookup.request.id]
        size = self._pool.page_size
        self._queried_tokens += (lookup.num_pages - lookup.first) * size
        self._hit_tokens += lookup.num_put * size

    # --- between two steps --------------------------------------------------------------------------------

    def after_step(self, num_tokens: int, num_in_flight: int) -> None:
        """Copy filled pages out and put found ones in. num_tokens: of the step that was committed."""
        if self._stack is None:
            return
        now = time.perf_counter()
        self._rates.computed(num_tokens, now - self._busy_since)
        for request_id in [each for each in self._lookups if not self._scheduler.has_request(each)]:
            self._end(self._lookups[request_id])
        self._put_found()
        oldest = self._filled[0].step if self._filled else self._step
        is_due = len(self._filled) >= COPIED_TOGETHER or self._step - oldest >= MAX_STEPS
        if self._filled and (is_due or not self._scheduler.has_work):
            self._copy_filled(self._step - self._max_in_flight + 1 if num_in_flight else self._step)
        self._step += 1
        if not num_tokens and (pending := next(iter(self._lookups.values()), None)) is not None:
            pending.done.wait(IDLE_WAIT_S)
        self._busy_since = time.perf_counter()

    def _copy_filled(self, last_step: int) -> None:
        """Copy the pages that entered the cache up to `last_step`, all of which are computed now."""
        ready: list[_Filled] = []
        while self._filled and self._filled[0].step <= last_step:
            filled = self._filled.popleft()
            if self._pool.lookup(filled.page_hash) == filled.page:  # else it holds something else by now
                ready.append(filled)
        room = max(0, self._writer.room)
        self._writer.num_dropped += max(0, len(ready) - room)
        if chosen := ready[:room]:
            copied = CopiedPages.copy(self._kv, [filled.page for filled in chosen])
            self._writer.put([filled.name for filled in chosen], copied)

    def _put_found(self) -> None:
        """Put pages of requests that could be scheduled into the prefix cache, at most half of what is available."""
        limit = self._pool.available // 2
        num_left = max(1, min(MAX_PUT_BYTES // self._page_bytes, limit))
        for lookup in [each for each in self._lookups.values() if each.wanted]:
            lookup.wanted = False
            if num_left > 0:
                num_left -= self._put(lookup, num_left)

    def _put(self, lookup: Lookup, most: int) -> int:
        """Put at most so many pages of a prompt into the prefix cache. Returns how many it were."""
        pool, seq, pages = self._pool, lookup.seq, lookup.pages
        assert pages is not None, "they were found"
        if lookup.request.adapters and not self._keys.are_read(lookup.request):
            self._end(lookup)
            return 0
        begin = lookup.first + lookup.num_put
        before = self._cached(seq, begin)
        pool.incref(before)  # they must not be evicted for those behind them
        count = min(most, pages.count - lookup.num_put, pool.available)
        if len(before) < begin or not count:
            pool.free(before)
            self._end(lookup)
            return 0
        taken = pool.allocate(count)
        pages.put(self._kv, lookup.num_put, taken)
        for i, page in enumerate(taken, begin):
            if pool.register(page, seq.page_hash(i, pool.page_size)) and self._log is not None:
                self._log.stored(seq, i)
        pool.free([*before, *taken])
        lookup.num_put += count
        if lookup.num_put == pages.count:
            self._end(lookup)
        return count

    def _cached(self, seq: Seq, count: int) -> list[int]:
        """The first pages of a prompt that are in the device's cache, at most `count`."""
        found: list[int] = []
        for i in range(count):
            page = self._pool.lookup(seq.page_hash(i, self._pool.page_size))
            if page is None:
                break
            found.append(page)
        return found

    # --- the rest -----------------------------------------------------------------------------------------

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until pages have keys and the copied ones are written; False if that takes longer."""
        if self._stack is None or self._scope is None:
            return True
        return self._scope.done.wait(timeout_s) and self._writer.flush(timeout_s)

    def stats(self) -> KvTiersStats | None:
        """Counts since the start; None without tiers."""
        if self._stack is None:
            return None
        return KvTiersStats(
            num_queried_tokens_total=self._queried_tokens,
            num_hit_tokens_total=self._hit_tokens,
            num_dropped_total=self._writer.num_dropped,
            tiers=self._stack.stats(),
        )

    def close(self) -> None:
        """Write what is queued, for a limited time, and end the threads."""
        if self._stack is None or self._scope is None:
            return
        self._scope.close()
        self._writer.flush(FLUSH_S)
        self._writer.close()
        self._searches.close()
        if self._closes_stack:
            self._stack.close()


def _may_skip_prompt(request: Request) -> bool:
    """Whether a prompt whose keys and values are known need not be computed."""
    params = request.params
    if isinstance(params, PoolingParams):
        return params.reads_cache
    return not isinstance(params, SamplingParams) or params.prompt_logprobs is None

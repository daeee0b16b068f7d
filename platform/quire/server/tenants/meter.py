"""What one tenant, or one key, uses of its limits."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from quire.errors import BadRequest, RateLimited
from quire.server.tenants.buckets import TokenBucket
from quire.server.tenants.tenant import TenantLimits

KINDS = ("requests", "tokens")

PLACE_RETRY_S = 1.0
"""`Retry-After` of a request that finds no place among those that are answered at once."""


class Meter:
    """Counts the requests and tokens of one owner. For one event loop.

    owner: how errors call it, e.g. "tenant `a`".
    """

    def __init__(self, owner: str, limits: TenantLimits, clock: Callable[[], float]) -> None:
        self._owner, self._clock, self.limits = owner, clock, limits
        self.requests = _bucket(None, limits.requests_per_minute, clock)
        self.tokens = _bucket(None, limits.tokens_per_minute, clock)
        self.num_running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def configure(self, limits: TenantLimits) -> None:
        """Apply the limits of a new key file."""
        if limits == self.limits:
            return
        self.limits = limits
        self.requests = _bucket(self.requests, limits.requests_per_minute, self._clock)
        self.tokens = _bucket(self.tokens, limits.tokens_per_minute, self._clock)
        self._wake()

    def check(self) -> None:
        """Raise `RateLimited` if one more request is too many now."""
        if self.requests is not None and self.requests.level < 1:
            self._refuse(f"{self.requests.per_minute} requests per minute", self.requests.wait_s(1))
        if self.tokens is not None and self.tokens.level <= 0:
            self._refuse(f"{self.tokens.per_minute} tokens per minute", self.tokens.wait_s(1))

    def count_request(self) -> None:
        if self.requests is not None:
            self.requests.take(1)

    def check_tokens(self, count: int) -> None:
        """Raise `RateLimited` if a prompt of `count` tokens is too much now, `BadRequest` if it always is."""
        if self.tokens is None:
            return
        limit = self.tokens.per_minute
        if count > limit:
            raise BadRequest(
                f"The request has {count} prompt tokens, and the {self._owner} may use {limit} tokens per minute.",
                "prompt",
            )
        if count > self.tokens.level:
            self._refuse(f"{limit} tokens per minute", self.tokens.wait_s(count))

    # --- places among the requests that are answered at once -----------------------------------------

    @property
    def has_place(self) -> bool:
        limit = self.limits.concurrent_requests
        return limit is None or self.num_running < limit

    async def enter(self) -> None:
        """Take a place; wait for one behind others if all are taken. Raises `RateLimited` if too many wait."""
        if self.has_place:
            self.num_running += 1
            return
        if len(self._waiting) >= self.limits.queued_requests:
            waiting = f" and {self.limits.queued_requests} waiting" if self.limits.queued_requests else ""
            self._refuse(f"{self.limits.concurrent_requests} requests at once{waiting}", PLACE_RETRY_S)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()
            else:
                self._waiting.remove(place)
            raise

    def leave(self) -> None:
        """Give the place to the request that waits for the longest time."""
        self.num_running -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.has_place:
            place = self._waiting.popleft()
            if not place.done():
                self.num_running += 1
                place.set_result(None)

    def _refuse(self, limit: str, retry_after_s: float) -> None:
        raise RateLimited(f"The {self._owner} may have {limit}. Try again later.", retry_after_s)


RATE_HEADERS = tuple(f"x-ratelimit-{part}-{kind}" for kind in KINDS for part in ("limit", "remaining", "reset"))


def rate_headers(meters: Iterable[Meter]) -> Iterator[tuple[str, str]]:
    """The `x-ratelimit-…` headers of OpenAI's API: of each kind of limit the one of which the least is left."""
    meters = list(meters)
    for kind in KINDS:
        buckets = [bucket for meter in meters if (bucket := getattr(meter, kind)) is not None]
        if buckets:
            least: TokenBucket = min(buckets, key=lambda bucket: bucket.level)
            yield f"x-ratelimit-limit-{kind}", str(least.per_minute)
            yield f"x-ratelimit-remaining-{kind}", str(max(0, math.floor(least.level)))
            yield f"x-ratelimit-reset-{kind}", duration(least.full_in_s)


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: 120ms, 1.5s, 6m0s."""
    milliseconds = math.ceil(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"


def _bucket(before: TokenBucket | None, per_minute: int | None, clock: Callable[[], float]) -> TokenBucket | None:
    if per_minute is None:
        return None
    if before is None:
        return TokenBucket(per_minute, clock)
    before.resize(per_minute)
    return before

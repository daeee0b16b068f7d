"""A gate that limits the tokens of one request, and refuses users with too many requests in a time window.

The header `x-user` names the user; a proxy in front of the server must set it.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Lock

from quire.plugin import Context, GateRequest, Option, RequestGate, RequestRefused, hookimpl

MAX_USERS = 10_000
"""Users to remember; the oldest is dropped first."""

FIELDS = ("max_tokens", "max_completion_tokens")


class Budget:
    """The gate. Several worker threads call it at once, hence the lock."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_tokens: int = context.options["max_tokens"]
        self._requests: int = context.options["requests"]
        self._window_s: float = context.options["window_s"]
        self._clock, self._lock = clock, Lock()
        self._seen: defaultdict[str, deque[float]] = defaultdict(deque)

    def admit(self, request: GateRequest) -> GateRequest | RequestRefused:
        """Refuse the request, or return a copy whose token limit is within the budget."""
        user = request.headers.get("x-user", "")
        if not self._within(user):
            return RequestRefused(
                f"At most {self._requests} requests in {self._window_s:g} s, {user or 'stranger'}.", 429
            )
        return replace(request, body={**request.body, **self._capped(request)})

    def _within(self, user: str) -> bool:
        with self._lock:
            now, seen = self._clock(), self._seen[user]
            while seen and seen[0] <= now - self._window_s:
                seen.popleft()
            if len(seen) >= self._requests:
                return False
            seen.append(now)
            if len(self._seen) > MAX_USERS:
                del self._seen[next(iter(self._seen))]
            return True

    def _capped(self, request: GateRequest) -> dict[str, int]:
        asked = {f: v for f in FIELDS if isinstance(v := request.body.get(f), int)}
        return {
            field: min(value, self._max_tokens) for field, value in (asked or {"max_tokens": self._max_tokens}).items()
        }


@hookimpl
def quire_options() -> Iterable[Option]:
    """The limits."""
    yield Option("max_tokens", int, 1024, "maximum tokens of one request")
    yield Option("requests", int, 60, "maximum requests of one user in the window")
    yield Option("window_s", float, 60.0, "length of the window in seconds")


@hookimpl
def quire_request_gates() -> Iterable[RequestGate]:
    """One gate, built with the options."""
    yield RequestGate("budget", Budget)

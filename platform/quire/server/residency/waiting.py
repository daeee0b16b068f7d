"""The requests that wait for models, in a number and for a time that are bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import TypeVar

from quire.errors import Overloaded, QuireError
from quire.server.residency.policy import Wanted
from quire.server.residency.registration import Registration

T = TypeVar("T")


@dataclass(eq=False)
class _RoomRequest:
    """A load of a client that waits for memory."""

    wanted: Wanted
    granted: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Waiting:
    """max_waiters: of all models together. timeout_s: of each."""

    def __init__(self, max_waiters: int, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_waiters, self._timeout_s, self._clock = max_waiters, timeout_s, clock
        self._rooms: list[_RoomRequest] = []
        self.count = 0

    def check(self, name: str) -> None:
        """Raise Overloaded if no further request may wait."""
        if self.count >= self._max_waiters:
            raise Overloaded(
                f"The model `{name}` is not loaded, and {self.count} requests wait for models already "
                "(--max-model-waiters); try again later.",
                "model",
            )

    async def for_model(self, one: Registration) -> None:
        """Return when the model is loaded; `answer` has counted the request as one of its users then.

        Raises Overloaded at the bounds, and what `refuse` gives.
        """
        self.check(one.name)
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        one.waiters.append(waiter)
        try:
            await self._bounded(waiter, one.name)
        except BaseException:
            if _has_result(waiter):  # the request has ended at the moment in which the model came
                one.num_users -= 1
            raise
        finally:
            if waiter in one.waiters:
                one.waiters.remove(waiter)

    async def for_room(self, name: str, num_bytes: int, incoming: MutableMapping[str, int]) -> None:
        """Return when there is room for a model that a client loads; it is in `incoming` then."""
        self.check(name)
        request = _RoomRequest(Wanted(name=name, num_bytes=num_bytes, since=self._clock()))
        self._rooms.append(request)
        try:
            await self._bounded(request.granted, name)
        except BaseException:
            if _has_result(request.granted):
                incoming.pop(name, None)
            raise
        finally:
            if request in self._rooms:
                self._rooms.remove(request)

    async def _bounded(self, waiter: asyncio.Future[None], name: str) -> None:
        self.count += 1
        try:
            async with asyncio.timeout(self._timeout_s):
                await waiter
        except TimeoutError:
            raise Overloaded(
                f"The model `{name}` was not loaded within {self._timeout_s:g} s (--model-wait-timeout-s), because "
                "the memory is in use or other models were loaded; try again later.",
                "model",
            ) from None
        finally:
            self.count -= 1

    def answer(self, one: Registration) -> None:
        """Let the requests that wait for a model go on: from now on they use it."""
        for waiter in one.waiters:
            if not waiter.done():
                one.num_users += 1
                waiter.set_result(None)
        one.waiters.clear()

    def refuse(self, one: Registration, error: QuireError) -> None:
        """Answer the requests that wait for a model with an error."""
        for waiter in one.waiters:
            if not waiter.done():
                waiter.set_exception(error)
        one.waiters.clear()

    def rooms(self) -> list[Wanted]:
        """The loads of clients that wait for memory."""
        return [request.wanted for request in self._rooms]

    def give_room(self, name: str, incoming: MutableMapping[str, int]) -> bool:
        """Let the load of a client begin; False if there is none of this name."""
        for request in self._rooms:
            if request.wanted.name == name and not request.granted.done():
                incoming[name] = request.wanted.num_bytes
                request.granted.set_result(None)
                self._rooms.remove(request)
                return True
        return False


def _has_result(waiter: asyncio.Future[T]) -> bool:
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None

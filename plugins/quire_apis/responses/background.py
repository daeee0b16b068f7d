"""Responses that are made in the background, while clients come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from quire.plugin import QuireError
from quire_apis.responses.runs import ResponseRun
from quire_apis.responses.storage.database import CUT


class BackgroundRun:
    """A response whose events are kept while it is made, so that streams may begin at any of them."""

    def __init__(self, owner: str, run: ResponseRun) -> None:
        self.owner, self.run = owner, run
        self._changed = asyncio.Event()
        self.task = asyncio.create_task(self._make())
        self.task.add_done_callback(lambda _: self._wake())

    async def events(self, after: int) -> AsyncGenerator[bytes, None]:
        """The encoded events whose sequence number is greater than `after`, until the response ends."""
        number = after + 1
        while True:
            is_done = self.task.done()
            while number < len(self.run.events):
                yield self.run.events[number]
                number += 1
            if is_done:
                return
            if not self.task.done():
                await self._changed.wait()

    async def stop(self, error: QuireError | None) -> None:
        """End the response, which has failed with `error` then, or was cancelled (None)."""
        self.run.cut_error = error
        self.task.cancel()
        await asyncio.wait([self.task])
        await self.run.cut()  # a task that was cancelled before its first step did nothing

    async def _make(self) -> None:
        async with aclosing(self.run.make()) as events:
            async for _ in events:
                self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class BackgroundRuns:
    """The responses that are made in the background now, by id."""

    def __init__(self) -> None:
        self._runs: dict[str, BackgroundRun] = {}

    async def start(self, owner: str, run: ResponseRun) -> BackgroundRun:
        """Begin to make a response."""
        try:
            await run.begin()
        except asyncio.CancelledError:
            await run.cut()
            raise
        started = BackgroundRun(owner, run)
        id = run.response["id"]
        self._runs[id] = started
        started.task.add_done_callback(lambda _: self._runs.pop(id, None))
        return started

    def get(self, owner: str, id: str) -> BackgroundRun | None:
        """A response of this client; None if it is not made now."""
        found = self._runs.get(id)
        return found if found is not None and found.owner == owner else None

    async def close(self) -> None:
        """End all, because the server stops."""
        await asyncio.gather(*(run.stop(QuireError(CUT)) for run in list(self._runs.values())))

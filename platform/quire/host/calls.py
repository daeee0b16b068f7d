"""Calls: questions that the host answers with the number they were asked with. It knows no requests. One event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from quire.errors import QuireError
from quire.host.protocol import Ask, AskAdapters, Message


class Calls:
    """The calls that have no answer yet."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._quick: set[int] = set()
        """Those that a host which is well answers between two steps."""

    async def __call__(self, make: Callable[[int], Message]) -> Any:
        """Send what `make` makes of a call number, and wait for the answer to it; raises one that is an error."""
        number = next(self._numbers)
        message = make(number)
        answer = self._open[number] = asyncio.get_running_loop().create_future()
        if isinstance(message, Ask | AskAdapters):
            self._quick.add(number)
        try:
            self._send(message)
            return await answer
        finally:
            del self._open[number]
            self._quick.discard(number)

    def answer(self, number: int, result: Any) -> None:
        """An answer has come; of a call that was given up it is dropped."""
        answer = self._open.get(number)
        if answer is None or answer.done():
            return
        if isinstance(result, QuireError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def fail(self, error: QuireError, quick: bool = False) -> None:
        """No answer will come. quick: only those fail that should have been answered at once."""
        for number in list(self._quick if quick else self._open):
            self.answer(number, error)

"""Calls to the engine process: a message with a call id, and a future for the answer with the same id."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from quire.engine_process.wire.adapter_changes import ListAdapters
from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.protocol import GetStats
from quire.errors import QuireError


class PendingCalls:
    """Calls that have no answer yet. For one event loop."""

    def __init__(self, send: Callable[[WireMessage], None]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._quick: set[int] = set()
        """Calls that a healthy engine process answers between two steps."""

    async def __call__(self, make: Callable[[int], WireMessage]) -> Any:
        """Send the message that `make` builds from a new call id; returns the answer, raising it if it is an error."""
        call_id = next(self._ids)
        message = make(call_id)
        answer = self._open[call_id] = asyncio.get_running_loop().create_future()
        if isinstance(message, GetStats | ListAdapters):
            self._quick.add(call_id)
        try:
            self._send(message)
            return await answer
        finally:
            del self._open[call_id]
            self._quick.discard(call_id)

    def answer(self, call_id: int, result: Any) -> None:
        """Complete a call with a result or a `QuireError`; ignored if its caller has given up."""
        answer = self._open.get(call_id)
        if answer is None or answer.done():
            return
        if isinstance(result, QuireError):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def fail(self, error: QuireError, quick: bool = False) -> None:
        """Fail all calls with an error; quick: only those that a healthy process would have answered at once."""
        for call_id in list(self._quick if quick else self._open):
            self.answer(call_id, error)

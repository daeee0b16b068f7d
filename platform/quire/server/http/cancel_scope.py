"""Ends the wait of one task from another one, with an error of its own."""

from __future__ import annotations

import asyncio
from types import TracebackType


class CancelScope:
    """Lets another task cancel the wait inside `with scope`, and any later one, with a given error."""

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._waiting: asyncio.Task[object] | None = None

    def stop(self, error: Exception) -> None:
        """Raise `error` in the task that waits inside the scope, and in every task that enters it later."""
        self._error = error
        if self._waiting is not None:
            self._waiting.cancel()

    def __enter__(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiting = asyncio.current_task()

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        task, self._waiting = self._waiting, None
        # Replace the cancellation by the error only if `stop` was the only one that cancelled the task.
        if kind is asyncio.CancelledError and self._error is not None and task is not None and task.uncancel() == 0:
            raise self._error from None

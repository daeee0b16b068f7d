"""The database in a thread of its own: nothing here blocks the event loop, and operations keep the order of calls."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from quire.plugin import QuireError
from quire_apis.responses.storage.database import Database
from quire_apis.responses.storage.retention import DAY_S, Limits

T = TypeVar("T")


class NotStored(QuireError):
    """The database cannot be read or written."""


class Store:
    """Responses and conversations. A given file is opened at once, a temporary one when it is first needed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """options: of the plugin. Raises `ConfigError`."""
        self._path: str = options["path"]
        self._limits = Limits(
            count=options["max-stored"], num_bytes=options["max-bytes"], age_s=options["max-age-days"] * DAY_S
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._database = Database(self._path, self._limits) if self._path and self.is_on else None

    @property
    def is_on(self) -> bool:
        """Whether anything is stored."""
        return self._limits.count > 0

    async def run(self, work: Callable[[Database], T]) -> T:
        """The result of `work`, which runs to its end even if the caller is cancelled. Raises `NotStored`."""
        running = asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)
        return await asyncio.shield(running)

    async def close(self) -> None:
        """Close the database after all operations so far; the next one opens it again."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _run(self, work: Callable[[Database], T]) -> T:
        try:
            if self._database is None:
                self._database = Database(self._path, self._limits)
            return work(self._database)
        except sqlite3.Error as error:
            raise NotStored(f"The stored responses cannot be used: {error}.") from error

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

"""Tokens that tenants have used in a calendar month, kept in an SQLite file beside the key file."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Protocol

log = logging.getLogger("quire.server")

SUFFIX = ".spent.sqlite"

_TABLE = "CREATE TABLE IF NOT EXISTS spent (tenant TEXT, month TEXT, tokens INTEGER, PRIMARY KEY (tenant, month))"
_ADD = "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT (tenant, month) DO UPDATE SET tokens = tokens + excluded.tokens"


class SpentTokens(Protocol):
    """Counts the tokens of a tenant in a month, which is written 2026-11."""

    def spent(self, tenant: str, month: str) -> int: ...

    def add(self, tenant: str, month: str, tokens: int) -> None: ...

    def flush(self) -> None:
        """Make what was added survive a restart. Blocks."""
        ...


class SpentFile:
    """`SpentTokens` in memory, which `flush` adds to a file. What was added since the last flush is lost in a crash.

    Raises sqlite3.Error for a file that cannot be read. The file is made by the first flush that has something to add.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: dict[tuple[str, str], int] = {}
        self._new: dict[tuple[str, str], int] = {}
        if path.exists():
            with closing(sqlite3.connect(path)) as file:
                file.execute(_TABLE)
                for tenant, month, tokens in file.execute("SELECT tenant, month, tokens FROM spent"):
                    self._tokens[tenant, month] = tokens

    def spent(self, tenant: str, month: str) -> int:
        return self._tokens.get((tenant, month), 0)

    def add(self, tenant: str, month: str, tokens: int) -> None:
        for counts in (self._tokens, self._new):
            counts[tenant, month] = counts.get((tenant, month), 0) + tokens

    def flush(self) -> None:
        new, self._new = self._new, {}
        if not new:
            return
        try:
            with closing(sqlite3.connect(self._path)) as file, file:
                file.execute(_TABLE)
                file.executemany(_ADD, [(*key, tokens) for key, tokens in new.items()])
        except sqlite3.Error as error:
            log.error("the tokens that tenants spent cannot be stored in %s and are tried again: %s", self._path, error)
            for key, tokens in new.items():
                self._new[key] = self._new.get(key, 0) + tokens

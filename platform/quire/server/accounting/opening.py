"""Opens the database of usage and audit entries."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from urllib.parse import quote

from quire.errors import ConfigError
from quire.types.usage import AMOUNTS

VERSION = 1
BUSY_S = 2.0
"""How long a statement waits for a lock of another process."""

KEYS = ("tenant", "model", "adapter", "endpoint", "outcome")
COLUMNS = ("id", "ended", *KEYS, *AMOUNTS)
"""Those of a record, in the order of the table."""

SINGLE, DAY = 0, 1
"""The kind of a row: one request, or a sum of requests that came while the database was not writable; or a day."""

_AMOUNT_COLUMNS = ", ".join(f"{name} {'REAL' if name.endswith('_s') else 'INTEGER'} NOT NULL" for name in AMOUNTS)

SCHEMA = f"""
CREATE TABLE usage (
    id TEXT NOT NULL UNIQUE, ended REAL NOT NULL, {", ".join(f"{name} TEXT NOT NULL" for name in KEYS)},
    {_AMOUNT_COLUMNS}, kind INTEGER NOT NULL
);
CREATE INDEX usage_ended ON usage (kind, ended);
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, time REAL NOT NULL, actor TEXT NOT NULL,
    action TEXT NOT NULL, target TEXT NOT NULL, outcome TEXT NOT NULL, details TEXT NOT NULL
);
"""


def open_database(path: Path) -> sqlite3.Connection:
    """A connection that may write, to a file with all tables. Raises ConfigError, which names the file.

    A new file is readable by its owner only. synchronous = NORMAL: what was committed outlives the process, though
    after a power failure the last transactions may be missing.
    """
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(f"--usage-db: {path} cannot be used: {error}.") from error
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    for pragma in (
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "wal_autocheckpoint = 0",
        "journal_size_limit = 67108864",
    ):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN IMMEDIATE")  # fails where nothing can be written
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise sqlite3.DatabaseError(f"a newer version of Quire wrote it (format {version})")
    if version == 0:
        for statement in SCHEMA.split(";"):
            connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")


def check_files(database: str | None, audit_log: str | None) -> None:
    """Make the files of the settings if they are missing. Raises ConfigError if one cannot be used."""
    if database is not None:
        open_database(Path(database)).close()
    if audit_log is not None:
        try:
            os.close(os.open(audit_log, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        except OSError as error:
            raise ConfigError(f"--audit-log: {audit_log} cannot be written: {error}.") from error


def open_to_read(path: Path) -> sqlite3.Connection:
    """A connection that cannot write. Raises `sqlite3.Error`."""
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=BUSY_S, check_same_thread=False)

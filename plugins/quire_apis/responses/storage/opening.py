"""Opens the file of a database, makes its tables, and closes it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

from quire.plugin import ConfigError

VERSION = 1

SCHEMA = """
CREATE TABLE kept (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, used REAL NOT NULL, status TEXT NOT NULL,
    previous TEXT, data BLOB NOT NULL, events BLOB, bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX kept_used ON kept (owner, used);
CREATE TABLE items (
    holder TEXT NOT NULL, part INTEGER NOT NULL, place INTEGER NOT NULL, id TEXT NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (holder, part, place)
);
CREATE INDEX items_id ON items (id);
"""


def open_file(file: Path) -> sqlite3.Connection:
    """A connection that keeps the file to itself. A new file is readable by its owner only: it holds conversations."""
    file.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        for pragma in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = NORMAL"):
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file. Raises `ConfigError` for a file of a newer version."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise ConfigError(f"--responses.path: the file was written by a newer version ({version}).")
    if version == 0:
        connection.executescript(f"BEGIN;{SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")


def release(connection: sqlite3.Connection, folder: str | None) -> None:
    """Close a database, and delete its folder if it is a temporary one."""
    connection.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)

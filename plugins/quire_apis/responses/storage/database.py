"""The SQLite database of responses and conversations. Every method is one transaction and blocks.

A *holder* is a response or a conversation; both have items. `kept` has a row for each holder, `items` for each item:
part 0 are the input of a response and the items of a conversation, part 1 the output of a response.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from quire.plugin import ConfigError
from quire_apis.responses.items import Item
from quire_apis.responses.storage.retention import Limits, Retention

Kind = Literal["response", "conversation"]
INPUT, OUTPUT = 0, 1
VERSION = 1
CUT = "The server was stopped before the response was complete."

_SCHEMA = """
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

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Page:
    """Items of a holder. has_more: others follow."""

    items: Sequence[Item]
    has_more: bool


class Database:
    """One open database, which no other process can open. Used by one thread at a time."""

    def __init__(self, path: str, limits: Limits) -> None:
        """path: "" for a temporary file. Raises `ConfigError`."""
        folder = None if path else tempfile.mkdtemp(prefix="quire-responses-")
        file = Path(path) if path else Path(folder or "") / "responses.sqlite"
        try:
            self._connection = _open(file)
            self._kept = Retention(self._connection, limits)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"--responses.path: {file} cannot be used: {error}.") from error
        self.close = weakref.finalize(self, _release, self._connection, folder)

    def _prepare(self) -> None:
        version = self._connection.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise ConfigError(f"--responses.path: the file was written by a newer version ({version}).")
        if version == 0:
            self._connection.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        with self._change():
            rows = self._connection.execute("SELECT id, data FROM kept WHERE status IN ('queued', 'in_progress')")
            for id, data in rows.fetchall():  # a process that ended left them
                failed = {"status": "failed", "error": {"code": "server_error", "message": CUT}}
                changed = _encode({**msgspec.json.decode(data), **failed})
                self._connection.execute("UPDATE kept SET status = 'failed', data = ? WHERE id = ?", (changed, id))
            self._kept.reload()
            self._kept.keep_within("")

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            self._kept.reload()
            raise
        self._connection.execute("COMMIT")

    def add(self, owner: str, kind: Kind, value: Mapping[str, Any], items: Iterable[Item]) -> None:
        """Keep a new response with its input, or a new conversation with its items."""
        rows = [(item["id"], _encode(item)) for item in items]
        status, previous = value.get("status", ""), value.get("previous_response_id")
        data = _encode({name: part for name, part in value.items() if name != "output"})
        size = len(data) + sum(len(item) for _, item in rows)
        now = time.time()
        with self._change():
            self._connection.execute(
                "INSERT INTO kept VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?)",
                (value["id"], owner, kind, now, status, previous, data, size),
            )
            self._insert(value["id"], INPUT, 0, rows)
            self._kept.add(owner, 1, size)
            self._kept.keep_within(value["id"])

    def finish(self, owner: str, response: Mapping[str, Any], events: bytes | None) -> None:
        """Keep the end of a response, unless it was deleted meanwhile. events: of its stream, None: none are kept."""
        rows = [(item["id"], _encode(item)) for item in response["output"]]
        data = _encode({name: part for name, part in response.items() if name != "output"})
        id = response["id"]
        found = self._connection.execute("SELECT length(data) FROM kept WHERE id = ?", (id,)).fetchone()
        if found is None:
            return
        with self._change():
            grown = len(data) - found[0] + sum(len(item) for _, item in rows) + len(events or b"")
            self._connection.execute(
                "UPDATE kept SET status = ?, data = ?, events = ?, used = ? WHERE id = ?",
                (response["status"], data, events, time.time(), id),
            )
            self._insert(id, OUTPUT, 0, rows)
            self._kept.grow(owner, id, grown)
            self._kept.keep_within(id)

    def get(self, owner: str, kind: Kind, id: str) -> dict[str, Any] | None:
        """A response with its output, or a conversation; None if the client has none with this id."""
        row = self._row(owner, kind, id, "data")
        if row is None:
            return None
        value: dict[str, Any] = msgspec.json.decode(row[0])
        if kind == "response":
            value["output"] = self._items(id, OUTPUT)
        return value

    def events(self, owner: str, id: str) -> bytes | None:
        """The kept events of a response; None without."""
        row = self._row(owner, "response", id, "events")
        return None if row is None else row[0]

    def update(self, owner: str, kind: Kind, id: str, changes: Mapping[str, Any]) -> dict[str, Any] | None:
        """Change fields of a holder; returns all of them."""
        with self._change():
            row = self._row(owner, kind, id, "data")
            if row is None:
                return None
            value = {**msgspec.json.decode(row[0]), **changes}
            data = _encode(value)
            self._kept.grow(owner, id, len(data) - len(row[0]))
            self._connection.execute("UPDATE kept SET data = ? WHERE id = ?", (data, id))
            self._kept.keep_within(id)
        return value

    def delete(self, owner: str, kind: Kind, id: str) -> bool:
        """Delete a holder and its items; False if the client has none with this id."""
        with self._change():
            if self._row(owner, kind, id, "id") is None:
                return False
            self._kept.remove(owner, id)
        return True

    def chain(self, owner: str, id: str, max_length: int) -> list[tuple[str, list[Item]]] | None:
        """The status and the items of a response and of all before it, the oldest first. They count as used now.

        None if one of them is not kept. max_length: of the chain; what is before is left out.
        """
        found: list[tuple[str, list[Item]]] = []
        with self._change():
            now = time.time()
            following: str | None = id
            while following is not None and len(found) < max_length:
                row = self._row(owner, "response", following, "status, previous")
                if row is None:
                    return None
                items = [*self._items(following, INPUT), *self._items(following, OUTPUT)]
                found.append((row[0], items))
                self._connection.execute("UPDATE kept SET used = ? WHERE id = ?", (now, following))
                following = row[1]
        return found[::-1]

    def conversation(self, owner: str, id: str) -> list[Item] | None:
        """The items of a conversation, which counts as used now."""
        with self._change():
            if self._row(owner, "conversation", id, "id") is None:
                return None
            self._connection.execute("UPDATE kept SET used = ? WHERE id = ?", (time.time(), id))
        return self._items(id, INPUT)

    def append(self, owner: str, id: str, items: Sequence[Item]) -> bool:
        """Add items to a conversation; False if the client has none with this id."""
        rows = [(item["id"], _encode(item)) for item in items]
        with self._change():
            if self._row(owner, "conversation", id, "id") is None:
                return False
            last = self._connection.execute("SELECT max(place) FROM items WHERE holder = ?", (id,)).fetchone()[0]
            self._insert(id, INPUT, 0 if last is None else last + 1, rows)
            self._kept.grow(owner, id, sum(len(item) for _, item in rows))
            self._connection.execute("UPDATE kept SET used = ? WHERE id = ?", (time.time(), id))
            self._kept.keep_within(id)
        return True

    def page(self, holder: str, after: str | None, limit: int, newest_first: bool) -> Page | None:
        """Items of an input or a conversation, those after the item `after`; None if there is no such item.

        The caller has checked that the holder is the client's.
        """
        order, sign = ("DESC", "<") if newest_first else ("ASC", ">")
        where, values = "", []
        if after is not None:
            place = self._place(holder, after)
            if place is None:
                return None
            where, values = f"AND place {sign} ?", [place]
        rows = self._connection.execute(
            f"SELECT data FROM items WHERE holder = ? AND part = ? {where} ORDER BY place {order} LIMIT ?",
            (holder, INPUT, *values, limit + 1),
        ).fetchall()
        return Page([msgspec.json.decode(data) for (data,) in rows[:limit]], len(rows) > limit)

    def item(self, owner: str, id: str, holder: str | None = None) -> Item | None:
        """An item of the client. holder: that has it, None: any."""
        row = self._connection.execute(
            "SELECT items.data FROM items JOIN kept ON kept.id = holder"
            " WHERE items.id = ? AND owner = ? AND holder = coalesce(?, holder) AND used > ? LIMIT 1",
            (id, owner, holder, self._kept.oldest),
        ).fetchone()
        return None if row is None else msgspec.json.decode(row[0])

    def delete_item(self, owner: str, holder: str, id: str) -> bool:
        """Delete an item of a conversation; False if there is none."""
        with self._change():
            place = self._place(holder, id)
            if place is None or self._row(owner, "conversation", holder, "id") is None:
                return False
            key = (holder, INPUT, place)
            where = "holder = ? AND part = ? AND place = ?"
            (size,) = self._connection.execute(f"SELECT length(data) FROM items WHERE {where}", key).fetchone()
            self._connection.execute(f"DELETE FROM items WHERE {where}", key)
            self._kept.grow(owner, holder, -size)
        return True

    # --- parts of transactions ---------------------------------------------------------------------

    def _row(self, owner: str, kind: Kind, id: str, columns: str) -> Any:
        return self._connection.execute(
            f"SELECT {columns} FROM kept WHERE id = ? AND owner = ? AND kind = ? AND used > ?",
            (id, owner, kind, self._kept.oldest),
        ).fetchone()

    def _items(self, holder: str, part: int) -> list[Item]:
        rows = self._connection.execute(
            "SELECT data FROM items WHERE holder = ? AND part = ? ORDER BY place", (holder, part)
        )
        return [msgspec.json.decode(data) for (data,) in rows]

    def _place(self, holder: str, id: str) -> int | None:
        row = self._connection.execute(
            "SELECT place FROM items WHERE holder = ? AND part = ? AND id = ?", (holder, INPUT, id)
        ).fetchone()
        return None if row is None else row[0]

    def _insert(self, holder: str, part: int, first: int, rows: Sequence[tuple[str, bytes]]) -> None:
        self._connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?, ?)",
            [(holder, part, first + number, id, data) for number, (id, data) in enumerate(rows)],
        )


def _open(file: Path) -> sqlite3.Connection:
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


def _release(connection: sqlite3.Connection, folder: str | None) -> None:
    connection.close()
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)

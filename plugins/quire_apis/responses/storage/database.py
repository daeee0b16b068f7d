"""The SQLite database of responses and conversations. Every method is one transaction and blocks.

A *holder* is a response or a conversation; both have items. `kept` has a row for each holder, `items` for each item:
part 0 are the input of a response and the items of a conversation, part 1 the output of a response.
"""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from quire.plugin import ConfigError, TooLarge
from quire_apis.responses.items import Item
from quire_apis.responses.storage.opening import open_file, prepare, release
from quire_apis.responses.storage.retention import Limits, Retention

Kind = Literal["response", "conversation"]
INPUT, OUTPUT = 0, 1
MAX_CONTEXT_ITEMS = 8192
MAX_CONTEXT_BYTES = 64 << 20
CUT = "The server was stopped before the response was complete."

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Page:
    """Items of a holder. has_more: others follow."""

    items: Sequence[Item]
    has_more: bool


class ContextSize:
    """Counts what a response continues, before it is read."""

    def __init__(self) -> None:
        self._count = self._num_bytes = 0

    def add(self, count: int, num_bytes: int) -> None:
        """Add items. Raises `TooLarge`."""
        self._count += count + 1  # a response without items counts too
        self._num_bytes += num_bytes
        if self._count > MAX_CONTEXT_ITEMS or self._num_bytes > MAX_CONTEXT_BYTES:
            raise TooLarge(
                f"What this continues has more than {MAX_CONTEXT_ITEMS} items or {MAX_CONTEXT_BYTES} bytes: begin anew."
            )


class Database:
    """One open database, which no other process can open. Used by one thread at a time."""

    def __init__(self, path: str, limits: Limits) -> None:
        """path: "" for a temporary file. Raises `ConfigError`."""
        folder = None if path else tempfile.mkdtemp(prefix="quire-responses-")
        file = Path(path) if path else Path(folder or "") / "responses.sqlite"
        try:
            self._connection = open_file(file)
            self._kept = Retention(self._connection, limits)
            self._prepare()
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(f"--responses.path: {file} cannot be used: {error}.") from error
        self.close = weakref.finalize(self, release, self._connection, folder)

    def _prepare(self) -> None:
        prepare(self._connection)
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

    def chain(self, owner: str, id: str) -> list[tuple[str, list[Item]]] | None:
        """The status and the items of a response and of all before it, the oldest first. They count as used now.

        None if one of them is not kept. Raises `TooLarge`.
        """
        found: list[tuple[str, list[Item]]] = []
        size = ContextSize()
        with self._change():
            now = time.time()
            following: str | None = id
            while following is not None:
                row = self._row(owner, "response", following, "status, previous")
                if row is None:
                    return None
                self._add_to(size, following)
                items = [*self._items(following, INPUT), *self._items(following, OUTPUT)]
                found.append((row[0], items))
                self._connection.execute("UPDATE kept SET used = ? WHERE id = ?", (now, following))
                following = row[1]
        return found[::-1]

    def conversation(self, owner: str, id: str) -> list[Item] | None:
        """The items of a conversation, which counts as used now. Raises `TooLarge`."""
        with self._change():
            if self._row(owner, "conversation", id, "id") is None:
                return None
            self._add_to(ContextSize(), id)
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

    def _add_to(self, size: ContextSize, holder: str) -> None:
        query = "SELECT count(*), coalesce(sum(length(data)), 0) FROM items WHERE holder = ?"
        size.add(*self._connection.execute(query, (holder,)).fetchone())

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

"""Makes responses: iterates an answer, writes its events, and keeps how it ended, however that is."""

from __future__ import annotations

import logging
import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec

from quire.plugin import Answer, QuireError
from quire_apis.responses.draft import ended, error_object
from quire_apis.responses.items import Item
from quire_apis.responses.storage.database import Database
from quire_apis.responses.storage.store import NotStored, Store
from quire_apis.responses.writing.output import Output, OutputSettings
from quire_apis.responses.writing.output_items import Event

log = logging.getLogger("quire.responses")

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A response that was asked for. owner: the client. input: items of this request only.

    conversation: gets input and output at the end. stores: the response is kept.
    """

    owner: str
    input: Sequence[Item]
    answer: Answer
    settings: OutputSettings
    conversation: str | None
    stores: bool


class ResponseRun:
    """One response in the making.

    response: the object, as far as it has come. error: why it failed. events: of a background response, encoded.
    """

    def __init__(self, store: Store, asked: Asked, response: dict[str, Any]) -> None:
        self.response = response
        self.error: QuireError | None = None
        self.cut_error: QuireError | None = None
        """Why the response failed if its iteration is ended early; None: it was cancelled."""
        self._store, self._asked = store, asked
        self._output = Output(asked.settings)
        self.events: list[bytes] = []
        self._count = 0
        self._last = b""
        self._has_begun = self._has_ended = False

    async def begin(self) -> list[bytes]:
        """Keep the response, and return its first events."""
        self._has_begun = True  # also if this is cancelled while the response is stored
        if self._asked.stores:
            first = dict(self.response)
            try:
                await self._store.run(lambda db: db.add(self._asked.owner, "response", first, self._asked.input))
            except NotStored:
                self._has_begun = False
                raise
        if not self.response["background"]:
            return [self._status_event("created"), self._status_event("in_progress")]
        return [self._status_event("created"), self._status_event("queued")]

    async def make(self) -> AsyncGenerator[bytes, None]:
        """Make the response and give its encoded events.

        The first come with the first part of the answer, unless `begin` was called before. Raises what the answer
        raises before its first event; later the response fails. Closing the iterator, or cancelling its task, cancels
        the response.
        """
        finish: str | None = None
        try:
            async with aclosing(self._asked.answer.deltas()) as deltas:
                async for delta in deltas:
                    for event in await self._first():
                        yield event
                    for part in self._output.push(delta):
                        yield self._encoded(part)
                    finish = delta.finish_reason or finish
            if finish in (None, "abort"):
                raise QuireError("The answer was ended before it was complete.")
            for part in self._output.end(is_whole=finish != "length"):
                yield self._encoded(part)
            await self._end("incomplete" if finish == "length" else "completed")
        except Exception as error:
            if not self._has_begun:
                raise
            for part in self._output.cut():
                yield self._encoded(part)
            await self._fail(error)
        finally:
            await self.cut()
        yield self._last

    async def _first(self) -> Sequence[bytes]:
        """The events before the first part."""
        if not self._has_begun:
            return await self.begin()
        if self.response["status"] != "queued":
            return ()
        self.response["status"] = "in_progress"
        return [self._status_event("in_progress")]

    async def _fail(self, error: Exception) -> None:
        if not isinstance(error, QuireError):
            log.error("a response failed", exc_info=error)
            error = QuireError("An internal error occurred; the server's log has the details.")
        self.error = error
        await self._end("failed")

    async def cut(self) -> None:
        """End the response if it has begun and not ended: the client disconnected or cancelled, or the server stops."""
        if not self._has_begun or self._has_ended:
            return
        for part in self._output.cut():
            self._encoded(part)
        self.error = self.cut_error
        await self._end("cancelled" if self.error is None else "failed")

    async def _end(self, status: str) -> None:
        self._has_ended = True
        asked = self._asked
        self.response = ended(self.response, status, self._output.items, asked.answer.usage())
        if self.error is not None:
            self.response["error"] = error_object(self.error)
        if status != "cancelled":  # which has no event
            self._status_event(status)
        try:
            await self._store.run(self._keep)
        except NotStored:
            log.exception("the end of a response was not stored")

    def _keep(self, database: Database) -> None:
        asked, response = self._asked, self.response
        events = zlib.compress(b"".join(self.events)) if response["background"] else None
        if asked.stores:
            database.finish(asked.owner, response, events)
        if asked.conversation is not None and response["status"] in ("completed", "incomplete"):
            database.append(asked.owner, asked.conversation, [*asked.input, *self._output.items])

    def _status_event(self, status: str) -> bytes:
        return self._encoded({"type": f"response.{status}", "response": self.response})

    def _encoded(self, event: Event) -> bytes:
        data = _encode({**event, "sequence_number": self._count})
        self._count += 1
        self._last = b"event: %s\ndata: %s\n\n" % (event["type"].encode(), data)
        if self.response["background"]:
            self.events.append(self._last)
        return self._last


def kept_events(data: bytes, after: int) -> Iterator[bytes]:
    """The encoded events of a stored response whose sequence number is greater than `after`."""
    for event in zlib.decompress(data).split(b"\n\n")[after + 1 : -1]:
        yield event + b"\n\n"


def error_event(error: QuireError) -> bytes:
    """The event that ends a stream after an error of the server."""
    event: Mapping[str, Any] = {"type": "error", **error_object(error), "param": error.param, "sequence_number": 0}
    return b"event: error\ndata: %s\n\n" % _encode(event)

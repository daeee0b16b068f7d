"""A small HTTP/1.1 client over a kept connection: cheap, so that the attacker leaves the processors to the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

LARGEST_LINE = 1 << 20


@dataclass(frozen=True)
class Answer:
    """What came back. body: all of it, the frames of chunks taken off. status 0: the connection was closed first."""

    status: int
    body: bytes
    seconds: float
    content_type: str = ""

    def json(self) -> Any:
        """The body, parsed; ValueError if it is none."""
        return json.loads(self.body)


WEBSOCKET = "websocket"
"""Content type of a body whose lines are messages to a WebSocket."""

LAST = b"the-last-event"
"""An unknown type, which the error that answers it names."""


async def converse(port: int, path: str, messages: list[bytes], within_s: float = 90.0) -> Answer:
    """What a WebSocket answers to these messages and to an event of type `LAST`, an event a line.

    status: 101, or 0 if it was closed.
    TimeoutError: it did not end in time.
    """
    begin, received, status = time.perf_counter(), list[bytes](), 101
    try:
        async with asyncio.timeout(within_s), connect(f"ws://127.0.0.1:{port}{path}", max_size=None) as socket:
            for message in [*messages, b'{"type": "' + LAST + b'"}']:
                await socket.send(message.decode("utf-8", "replace"))
            while not received or LAST not in received[-1]:
                received.append(bytes(await socket.recv(decode=False)))
    except ConnectionClosed as closed:
        status = 0 if closed.rcvd is None else 101
        received.append(json.dumps({"type": "closed", "code": closed.rcvd.code if closed.rcvd else 0}).encode())
    except TimeoutError:
        raise
    except (InvalidHandshake, OSError):
        status = 0
    return Answer(status, b"\n".join(received), time.perf_counter() - begin, WEBSOCKET)


class Wire:
    """A connection that is opened when it is needed, and again when it was closed."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json", within_s: float = 90.0
    ) -> Answer:
        """One exchange. TimeoutError: it did not end in time, and the connection is closed."""
        if kind == WEBSOCKET:
            return await converse(self._port, path, body.split(b"\n"), within_s)
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(within_s):
                status, kind, parts = await self._start(method, path, body, kind)
                return Answer(status, b"".join([part async for part in parts]), time.perf_counter() - begin, kind)
        except TimeoutError:
            await self.close()
            raise
        except (OSError, asyncio.IncompleteReadError, ValueError):
            await self.close()
            return Answer(0, b"", time.perf_counter() - begin)
        except BaseException:
            await self.close()
            raise

    async def stream(self, path: str, body: dict[str, Any], within_s: float = 90.0) -> tuple[int, AsyncIterator[bytes]]:
        """The status and the pieces of the body, as they come; a caller that leaves early must `close`."""
        async with asyncio.timeout(within_s):
            status, _, parts = await self._start("POST", path, json.dumps(body).encode(), "application/json")
        return status, parts

    async def close(self) -> None:
        """Hang up."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            with suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), 1)

    async def _start(self, method: str, path: str, body: bytes, kind: str) -> tuple[int, str, AsyncIterator[bytes]]:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {kind}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        kept = self._writer is not None
        try:
            await self._send(head.encode("utf-8", "replace"), body)
            return await self._head()
        except (OSError, asyncio.IncompleteReadError):
            if not kept:
                raise
            await self.close()  # a kept connection may have been closed meanwhile
            await self._send(head.encode("utf-8", "replace"), body)
            return await self._head()

    async def _send(self, head: bytes, body: bytes) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port, limit=LARGEST_LINE)
        self._writer.write(head)
        self._writer.write(body)
        # The server may answer before it has all of the body, and then reads no more.
        with suppress(OSError):
            await asyncio.wait_for(self._writer.drain(), 30)

    async def _head(self) -> tuple[int, str, AsyncIterator[bytes]]:
        assert self._reader is not None
        text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        closes = headers.get("connection", "").lower() == "close"
        return int(first.split()[1]), headers.get("content-type", ""), self._parts(headers, closes)

    async def _parts(self, headers: dict[str, str], closes: bool) -> AsyncIterator[bytes]:
        reader = self._reader
        assert reader is not None
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readline()) or b"x", 16):
                yield (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        else:
            yield await reader.readexactly(int(headers.get("content-length", "0")))
        if closes:
            await self.close()

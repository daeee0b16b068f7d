"""A small HTTP client: what clients compute is taken from the cores of the server that is measured."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

MAX_IDLE_S = 2.0
"""A connection that was idle for longer is opened anew: the server closes idle ones."""


@dataclass
class Reply:
    """headers: by name in lower case."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)


def request_bytes(method: str, path: str, body: Any = None) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
    if content:
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, "", ""]).encode() + content


class Connection:
    """One connection to 127.0.0.1 that carries one request at a time. Raises OSError and EOFError if it breaks."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._used = 0.0

    async def call(self, method: str, path: str, body: Any = None) -> Reply:
        """The answer to a request. A canceled call closes the connection, so that the server sees it."""
        if time.monotonic() - self._used > MAX_IDLE_S:
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        try:
            writer.write(request_bytes(method, path, body))
            reply = await _read(reader)
        except BaseException:
            self.close()
            raise
        self._used = time.monotonic()
        return reply

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _read(reader: asyncio.StreamReader) -> Reply:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    reply = Reply(int(head[0].split()[1]), headers)
    if "content-length" in headers:
        reply.body = await reader.readexactly(int(headers["content-length"]))
    else:
        while size := int(await reader.readline(), 16):
            reply.body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
    return reply

"""Calls a route of the application from within the process: without a socket and without an API key."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from starlette.types import Message, Scope

from quire.errors import BadRequest
from quire.records import RouteAnswer
from quire.server.http.auth import CLIENT


async def call_route(app: FastAPI, path: str, body: Mapping[str, Any], client: str) -> tuple[int, Any]:
    """The status and the parsed JSON body of the response to `POST path` with `body`.

    client: the client's share of the engine. Raises `BadRequest` for a body that asks for a stream. Cancelling the call
    aborts the request.
    """
    if body.get("stream"):
        raise BadRequest("`stream` is not available here: the whole answer is collected.", "stream")
    answer = await post_json(app, path, msgspec.json.encode(body), client)
    return answer.status, msgspec.json.decode(answer.body)


async def post_json(app: FastAPI, path: str, body: bytes, client: str) -> RouteAnswer:
    """The response to `POST path` with the JSON text `body`, collected whole. Otherwise as `call_route`."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    received: list[bytes] = []
    started: Message = {"status": 500}

    async def receive() -> Message:
        if unread:
            return unread.pop()
        disconnected: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await disconnected  # never done: the caller cancels instead

    async def send(message: Message) -> None:
        nonlocal started
        if message["type"] == "http.response.start":
            started = message
        else:
            received.append(message.get("body", b""))

    await app(_scope(path, len(body), client), receive, send)
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in started.get("headers", ())}
    return RouteAnswer(started["status"], headers, b"".join(received))


def _scope(path: str, num_bytes: int, client: str) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(num_bytes).encode())],
        "client": None,
        "server": None,
        "state": {},
        CLIENT: client,
    }

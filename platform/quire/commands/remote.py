"""Talks to any OpenAI-compatible server over HTTP, for the commands that are clients.

It knows the wire, not which server is behind it.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from quire.errors import QuireError


class RemoteError(QuireError):
    """The server answered with an error, or did not answer."""


def add_remote_flags(parser: argparse.ArgumentParser) -> None:
    """--url, --model-name, --api-key."""
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000/v1", help="base URL of the API; without a path, /v1 is added"
    )
    parser.add_argument(
        "--model-name", "--model", default=None, help="model to ask (default: the first the server lists)"
    )
    parser.add_argument(
        "--api-key", default=os.environ.get("OPENAI_API_KEY"), help="key to send (default: $OPENAI_API_KEY)"
    )


def _event(line: str) -> dict[str, Any] | None:
    """The payload of one SSE line; None for comments, blank lines and the end mark."""
    if not line.startswith("data:") or line.endswith("[DONE]"):
        return None
    event: dict[str, Any] = json.loads(line[5:])
    if "error" in event:
        raise RemoteError(str(event["error"].get("message", event["error"])))
    return event


def _check(status: int, body: bytes) -> None:
    if status < 400:
        return
    try:
        error = json.loads(body)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = body.decode("utf-8", "replace")[:500]
    raise RemoteError(f"{status}: {message}")


@dataclass(frozen=True)
class Remote:
    """A server under a base URL such as http://127.0.0.1:8000/v1."""

    url: str
    api_key: str | None = None
    timeout_s: float = 600.0

    @classmethod
    def of(cls, args: argparse.Namespace) -> Remote:
        """The server that the flags of `add_remote_flags` name; a URL without a path gets the usual one, /v1."""
        url = args.url.rstrip("/")
        return cls(url if urlsplit(url).path else f"{url}/v1", args.api_key)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every call."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def first_model(self) -> str:
        """Id of the first model the server lists. Raises RemoteError."""
        try:
            reply = httpx.get(f"{self.url}/models", headers=self.headers, timeout=30)
        except httpx.HTTPError as error:
            raise RemoteError(f"No server answers at {self.url}: {error}") from error
        _check(reply.status_code, reply.content)
        cards = reply.json()["data"]
        if not cards:
            raise RemoteError(f"The server at {self.url} serves no models.")
        return str(cards[0]["id"])

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """POST and yield the chunks of a streamed answer as they come."""
        try:
            with httpx.stream(
                "POST", self.url + path, json={**body, "stream": True}, headers=self.headers, timeout=self.timeout_s
            ) as reply:
                if reply.status_code >= 400:
                    _check(reply.status_code, reply.read())
                for line in reply.iter_lines():
                    event = _event(line)
                    if event is not None:
                        yield event
        except httpx.HTTPError as error:
            raise RemoteError(f"The server at {self.url} does not answer: {error!r}") from error

    async def astream(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        """`stream` for many calls at once, over one shared connection pool."""
        async with client.stream("POST", self.url + path, json={**body, "stream": True}, headers=self.headers) as reply:
            if reply.status_code >= 400:
                _check(reply.status_code, await reply.aread())
            async for line in reply.aiter_lines():
                event = _event(line)
                if event is not None:
                    yield event

"""A client of any OpenAI-compatible server, for the commands that send requests."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from quire.errors import QuireError

if TYPE_CHECKING:
    import httpx


class RemoteError(QuireError):
    """The server returned an error or did not respond."""


def add_remote_flags(parser: argparse.ArgumentParser) -> None:
    """Add --url, --model-name and --api-key."""
    parser.add_argument(
        "--url", default="http://127.0.0.1:8000/v1", help="base URL of the API; /v1 is added to a URL without a path"
    )
    parser.add_argument(
        "--model-name",
        "--model",
        default=None,
        help="name of the model (default: the first model that the server lists)",
    )
    parser.add_argument(
        "--api-key", default=os.environ.get("OPENAI_API_KEY"), help="API key (default: $OPENAI_API_KEY)"
    )


def _event(line: str) -> dict[str, Any] | None:
    """The payload of an SSE line; None for comments, blank lines and [DONE]. Raises RemoteError for an error object."""
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
class OpenAIServer:
    """A server under a base URL such as http://127.0.0.1:8000/v1."""

    url: str
    api_key: str | None = None
    timeout_s: float = 600.0

    @classmethod
    def from_args(cls, args: argparse.Namespace) -> OpenAIServer:
        """The server of the flags from `add_remote_flags`; a URL without a path gets /v1."""
        url = args.url.rstrip("/")
        return cls(url if urlsplit(url).path else f"{url}/v1", args.api_key)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def models(self) -> dict[str, str | None]:
        """The models and adapters that the server lists, each with its base model; None for a model.

        Raises RemoteError.
        """
        import httpx

        try:
            reply = httpx.get(f"{self.url}/models", headers=self.headers, timeout=30)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RemoteError(
                f"No server responds at {self.url}: {error}. Start one with `platform serve`, or choose one with --url."
            ) from error
        _check(reply.status_code, reply.content)
        try:
            return {str(card["id"]): card.get("parent") for card in reply.json()["data"]}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RemoteError(f"{self.url} does not answer as an OpenAI-compatible server: {error!r}") from error

    def first_model(self) -> str:
        """The first model that the server lists. Raises RemoteError."""
        models = self.models()
        if not models:
            raise RemoteError(f"The server at {self.url} serves no models.")
        return next(iter(models))

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Send a request, and yield the chunks of the streamed response."""
        import httpx

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
            raise RemoteError(f"The server at {self.url} does not respond: {error!r}") from error

    async def astream(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        """Like `stream`, for many concurrent calls on one connection pool."""
        async with client.stream("POST", self.url + path, json={**body, "stream": True}, headers=self.headers) as reply:
            if reply.status_code >= 400:
                _check(reply.status_code, await reply.aread())
            async for line in reply.aiter_lines():
                event = _event(line)
                if event is not None:
                    yield event

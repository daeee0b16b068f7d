"""An HTTP request as it travels between processes, and the messages of its answer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from starlette.types import Message, Scope

Messages: TypeAlias = Sequence[Message]
"""Some messages of an answer, as ASGI has them: the start, then parts of the body."""

MAX_KEY_BYTES = 1 << 20
"""So much of a prompt decides where a request goes."""


class HttpCall(NamedTuple):
    """A request whose body has been read. client: address and port."""

    method: str
    path: str
    raw_path: bytes
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    client: tuple[str, int] | None
    body: bytes

    @classmethod
    def from_scope(cls, scope: Scope, body: bytes) -> HttpCall:
        """The request that a scope of ASGI describes."""
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
        return cls(
            scope["method"],
            path,
            scope.get("raw_path") or path.encode(),
            scope["query_string"],
            tuple((bytes(name), bytes(value)) for name, value in scope["headers"]),
            tuple(scope["client"]) if scope.get("client") else None,
            body,
        )

    def scope(self) -> dict[str, Any]:
        """The scope of ASGI."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "scheme": "http",
            "method": self.method,
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": self.client,
            "server": None,
            "state": {},
        }


class WholeAnswer(NamedTuple):
    """A whole answer. replica: which one has given it."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    replica: str

    @classmethod
    def from_messages(cls, messages: Iterable[Message], replica: str) -> WholeAnswer:
        """The answer that messages of ASGI are parts of."""
        start, *parts = messages
        headers = tuple((bytes(name), bytes(value)) for name, value in start["headers"])
        return cls(start["status"], headers, b"".join(part.get("body", b"") for part in parts), replica)

    def messages(self) -> Messages:
        """What an application of ASGI sends for it."""
        start = {"type": "http.response.start", "status": self.status, "headers": list(self.headers)}
        return start, {"type": "http.response.body", "body": self.body, "more_body": False}

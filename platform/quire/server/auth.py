"""API keys: every path but the probes needs one of them.

It knows nothing of users or quotas; those are request gates.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ping", "/metrics"})
_BODY = b'{"error":"Unauthorized"}'


class RequireKey:
    """ASGI middleware that answers 401 unless the request carries a known bearer token."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self.app = app
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse."""
        if scope["type"] not in ("http", "websocket") or self._open(scope) or self._known(Headers(scope=scope)):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "Unauthorized"})
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _BODY})

    def _open(self, scope: Scope) -> bool:
        # Browsers send no credentials with a preflight request.
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            return True
        path: str = scope["path"]
        return path.removeprefix(scope.get("root_path", "")) in OPEN_PATHS

    def _known(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return False
        given = _digest(token.strip())
        # No early exit: the time must not tell which key was nearly right.
        return any([hmac.compare_digest(given, digest) for digest in self._digests])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

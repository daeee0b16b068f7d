"""API keys: every path but the probes needs one of them, and paths that change the server one of the admin's.

It knows nothing of users or quotas; those are request gates.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.server.clients import KEY

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/ping", "/metrics"})
ADMIN_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
_BODY = b'{"error":"Unauthorized"}'


class RequireKey:
    """ASGI middleware that answers 401 unless the request carries a known bearer token.

    keys: for all paths; none = they are open. admin_keys: they open all paths, and admin paths open to nothing else;
    none = admin paths are as others.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], admin_keys: Sequence[str] = ()) -> None:
        self.app = app
        admins = [_digest(key) for key in admin_keys]
        self._keys = [*map(_digest, keys), *admins] if keys else []
        self._admin_keys = admins or self._keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on or refuse."""
        if scope["type"] not in ("http", "websocket") or self._allowed(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "Unauthorized"})
        else:
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _BODY})

    def _allowed(self, scope: Scope) -> bool:
        # Browsers send no credentials with a preflight request.
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            return True
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        wanted = self._admin_keys if path in ADMIN_PATHS else self._keys
        if path in OPEN_PATHS or not wanted:
            return True
        digest = _known(Headers(scope=scope), wanted)
        if digest is not None:
            scope[KEY] = digest.hex()
        return digest is not None


def _known(headers: Headers, digests: Sequence[bytes]) -> bytes | None:
    """The digest of the key in the headers, if it is one of `digests`."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        return None
    given = _digest(token.strip())
    # No early exit: the time must not tell which key was nearly right.
    return given if any([hmac.compare_digest(given, digest) for digest in digests]) else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

"""Checks API keys: every path except probes needs a key, and paths that change the server need an admin key.

A key is sent as `Authorization: Bearer`, or as `x-api-key` or `api-key`, as clients of other services do; for a
WebSocket also among the subprotocols, because browsers send no other header. Users and quotas are the business of
request gates.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Sequence

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from quire.errors import QuireError, Unauthorized
from quire.server.http.errors import ErrorResponse, error_response
from quire.settings.server_config import is_loopback

METRICS = "/metrics"
OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/ping", METRICS})
ADMIN_PATHS = frozenset(
    {
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/load_model", "/v1/unload_model"),
        *("/sleep", "/wake_up", "/v1/model_aliases", "/v1/reload"),
    }
)
KEY_HEADERS = ("x-api-key", "api-key")
KEY_SUBPROTOCOL = "openai-insecure-api-key."
"""Beginning of the WebSocket subprotocol that carries a key. The server never selects it, so it sends no key back."""

KEY_DIGEST = "quire.api_key_digest"
"""Key in a request's scope: hexadecimal digest of the API key that authenticated it."""

CLIENT = "quire.client"
"""Key in the scope of a call from within the process, which needs no API key: the name of its client."""

_BODY = b'{"error":"Unauthorized"}'
"""As vLLM answers; routes with error bodies of their own have them here too."""


class AdminKeyRequired(QuireError):
    """A route that changes the server was called without an admin key."""

    def __init__(self, path: str, known: bool) -> None:
        lack = "this key is not one" if known else "the request has none that is known"
        super().__init__(f"{path} needs an admin key (--admin-api-key), and {lack}.")
        self.status = 403 if known else 401
        self.type = "PermissionDeniedError" if known else "AuthenticationError"


class APIKeyMiddleware:
    """Answers 401 unless the request carries a known key.

    keys: accepted on all paths except `ADMIN_PATHS`; empty: these paths need no key. admin_keys: accepted on all paths,
    and the only keys that `ADMIN_PATHS` accept; empty: `ADMIN_PATHS` accept `keys`. open_paths: need no key.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Sequence[str],
        admin_keys: Sequence[str] = (),
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        self.app, self._open = app, open_paths
        admins = [_digest(key) for key in admin_keys]
        self._keys = [*map(_digest, keys), *admins] if keys else []
        self._admin_keys = admins or self._keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._allowed(scope):
            await self.app(scope, receive, send)
        else:
            await self._refusal(scope)(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        # Browsers send no credentials with a preflight request.
        if scope["type"] == "http" and scope["method"] == "OPTIONS":
            return True
        if CLIENT in scope:
            return True
        path = path_of(scope)
        wanted = self._admin_keys if path in ADMIN_PATHS else self._keys
        if path in self._open or not wanted:
            return True
        digest = _known(Headers(scope=scope), wanted, scope.get("subprotocols", ()))
        if digest is not None:
            scope[KEY_DIGEST] = digest.hex()
        return digest is not None

    def _refusal(self, scope: Scope) -> Response:
        path = path_of(scope)
        if path in ADMIN_PATHS and self._admin_keys is not self._keys:
            error = AdminKeyRequired(path, _known(Headers(scope=scope), self._keys) is not None)
            response = error_response(error)
        else:
            response = ErrorResponse(Unauthorized("The API key is missing or wrong."), _BODY)
        if response.status_code == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


def path_of(scope: Scope) -> str:
    """The path of a request, without the root path of a proxy."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _known(headers: Headers, digests: Sequence[bytes], subprotocols: Sequence[str] = ()) -> bytes | None:
    """The digest of the key in the headers or subprotocols, if it is one of `digests`."""
    given = [_digest(headers[name].strip()) for name in KEY_HEADERS if headers.get(name)]
    given += [_digest(one.removeprefix(KEY_SUBPROTOCOL)) for one in subprotocols if one.startswith(KEY_SUBPROTOCOL)]
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        given.append(_digest(token.strip()))
    # No early exit: the response time must not depend on which key nearly matched.
    known = [one for one in given for digest in digests if hmac.compare_digest(one, digest)]
    return known[0] if known else None


def may_see_all_clients(scope: Scope, keys: Sequence[str], admin_keys: Sequence[str]) -> bool:
    """Whether the sender of a request may see what other clients use: with an admin key if there are any, else with a
    key, and from this machine where no key is needed.
    """
    if admin_keys:
        return scope.get(KEY_DIGEST) in {_digest(key).hex() for key in admin_keys}
    return bool(keys) or is_loopback((scope.get("client") or ("",))[0])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()

"""Whose a request is: of an API key where keys are asked for, else of a network address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request
from starlette.types import Scope

from quire.types import Request as EngineRequest

KEY = "quire.api_key_digest"
"""In a request's scope: hexadecimal digest of the API key that it was let in with."""


def client_of(scope: Scope) -> str:
    """The name under which a client shares the engine with others; empty where neither key nor address is known."""
    digest: str | None = scope.get(KEY)
    if digest is not None:
        return f"key:{digest}"
    address = Request(scope).client
    return f"address:{address.host}" if address is not None else ""


def with_own_caches(requests: Sequence[EngineRequest]) -> list[EngineRequest]:
    """The same, with cache salts that no other client's requests have: a client's salt never has a NUL."""
    return [replace(request, cache_salt=f"{request.client}\0{request.cache_salt or ''}") for request in requests]

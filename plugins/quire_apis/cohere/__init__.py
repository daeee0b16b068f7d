"""The plugin `cohere`: Cohere's `/v2/chat`, `/v1/tokenize` and `/v1/detokenize`, beside the server's `/v2/embed` and
`/v2/rerank`.

`schemas` has the bodies, `chat_body` turns them into those of `/v1/chat/completions`, `chat_events` writes the answer
and the events of its stream, and `routes` has the routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.errors import QuireError
from quire.plugin import Router, RouterContext, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pydantic import BaseModel


def _build(context: RouterContext) -> APIRouter:
    from quire_apis.cohere.routes import build_router

    return build_router(context)


def _bodies() -> Sequence[type[BaseModel]]:
    from quire_apis.cohere import schemas

    return schemas.BODIES


def error_body(error: QuireError, request_id: str | None) -> Mapping[str, Any]:
    """The body of an error response."""
    return {"message": error.message, **({"id": request_id} if request_id else {})}


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The routes of Cohere's API that the server itself lacks."""
    scopes = {"/v2/chat": "generate", "/v1/tokenize": "tokenize", "/v1/detokenize": "tokenize"}
    yield Router("cohere", _build, bodies=_bodies, error_body=error_body, scopes=scopes)

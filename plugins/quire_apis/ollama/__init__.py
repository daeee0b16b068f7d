"""The plugin `ollama`: Ollama's API, `/api/chat`, `/api/generate`, `/api/embed` and what lists and describes models.

`schemas` has the bodies, `chat_body` turns them into those of `/v1/chat/completions` and `/v1/completions`,
`answer_lines` writes answers as lines of JSON, `descriptions` describes models, and `routes` has the routes.
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
    from quire_apis.ollama.routes import build_router

    return build_router(context)


def _bodies() -> Sequence[type[BaseModel]]:
    from quire_apis.ollama import schemas

    return schemas.BODIES


SCOPES = {
    **dict.fromkeys(("/api/chat", "/api/generate"), "generate"),
    **dict.fromkeys(("/api/embed", "/api/embeddings"), "embed"),
    **dict.fromkeys(("/api/show", "/api/pull", "/api/tags", "/api/ps", "/api/version"), "read"),
}
"""What keys of a key file need for each route."""


def error_body(error: QuireError, request_id: str | None) -> Mapping[str, Any]:
    """The body of an error response, and the last line of a stream that fails."""
    return {"error": error.message}


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The routes of Ollama's API."""
    yield Router("ollama", _build, bodies=_bodies, error_body=error_body, scopes=SCOPES)

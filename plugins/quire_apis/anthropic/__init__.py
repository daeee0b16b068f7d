"""The plugin `anthropic`: Anthropic's Messages API, `/v1/messages` and `/v1/messages/count_tokens`.

`schemas` has the bodies, `conversation` and `tools` turn them into those of `/v1/chat/completions`, `chat_body` puts
these together, `message_writer` writes the message and its events, and `routes` has the routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quire.errors import QuireError
from quire.plugin import Option, Router, RouterContext, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pydantic import BaseModel


def _build(context: RouterContext) -> APIRouter:
    from quire_apis.anthropic.routes import build_router

    return build_router(context)


def _bodies() -> Sequence[type[BaseModel]]:
    from quire_apis.anthropic.schemas import CountTokensRequest, MessagesRequest

    return MessagesRequest, CountTokensRequest


def _error_body(error: QuireError, request_id: str | None) -> Mapping[str, Any]:
    from quire_apis.anthropic.errors import error_body

    return error_body(error, request_id)


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The routes of the Messages API."""
    scopes = {"/v1/messages": "generate", "/v1/messages/count_tokens": "tokenize"}
    yield Router("anthropic", _build, bodies=_bodies, error_body=_error_body, scopes=scopes)


@hookimpl
def quire_options() -> Iterable[Option]:
    """The model for names that are not served."""
    yield Option(
        "fallback",
        str,
        "",
        "model or adapter that answers for models that are not served, such as claude-…; * = the default model",
    )

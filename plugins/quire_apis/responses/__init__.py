"""The plugin `responses`: OpenAI's Responses API and its conversations, `/v1/responses` and `/v1/conversations`.

`schemas` has the bodies. `items` checks and completes the items of an input, `messages` turns items into the messages
of a chat, `tools` the tools, and `chat_body` puts these together. `prompts` finds what a response continues and begins
the answer. `runs` makes a response, `background` without a client; `draft` is its object, `writing` its output.
`storage` keeps responses and conversations. `api` and `conversations` are what the routes of `routes` do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.plugin import Option, Router, RouterContext, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pydantic import BaseModel

OPTIONS = (
    Option("path", str, "", "SQLite file that keeps responses across restarts; by default a temporary file"),
    Option("max-stored", int, 10_000, "responses and conversations that are kept; 0 = nothing is stored"),
    Option("max-age-days", float, 30.0, "days that responses and conversations are kept after their last use"),
    Option("max-bytes", int, 1 << 30, "maximum total size of all responses and conversations"),
)


def _build(context: RouterContext) -> APIRouter:
    from quire_apis.responses.routes import build_router

    return build_router(context)


def _bodies() -> Sequence[type[BaseModel]]:
    from quire_apis.responses.schemas import BODIES

    return BODIES


@hookimpl
def quire_options() -> Iterable[Option]:
    """Where and how long responses are kept."""
    return OPTIONS


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The routes of the Responses API."""
    counted = {"/v1/responses/input_tokens": "tokenize"}
    scopes = {"/v1/responses": "generate", "/v1/conversations": "generate", **counted}
    yield Router("responses", _build, bodies=_bodies, scopes=scopes)

"""The plugin `moderations`: OpenAI's `/v1/moderations`, answered by a classifier that is served.

`schemas` has the bodies and `routes` the route.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.plugin import Option, Router, RouterContext, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pydantic import BaseModel

SAFE = "safe,ok,neutral,normal,none,benign,non-toxic,not_toxic"


def _build(context: RouterContext) -> APIRouter:
    from quire_apis.moderations.routes import build_router

    return build_router(context)


def _bodies() -> Sequence[type[BaseModel]]:
    from quire_apis.moderations.schemas import ModerationRequest

    return (ModerationRequest,)


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The route of OpenAI's moderations."""
    yield Router("moderations", _build, bodies=_bodies, scopes={"/v1/moderations": "embed"})


@hookimpl
def quire_options() -> Iterable[Option]:
    """When a text is flagged."""
    yield Option("safe", str, SAFE, "labels that do not flag a text, separated by commas; case does not matter")
    yield Option("threshold", float, 0.5, "a text is flagged if another label has at least this score")

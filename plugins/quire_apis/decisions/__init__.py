"""The plugin `decisions`: typed questions about a state, answered with probabilities, as in vLLM's `/v1/systemone`.

`schemas` has the body and `routes` the route. `questions` turns each question into options with labels, and
probabilities of labels into an answer; `reading` reads those off the first token of a model's reply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.plugin import Router, RouterContext, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pydantic import BaseModel


def _build(context: RouterContext) -> APIRouter:
    from quire_apis.decisions.routes import build_router

    return build_router(context)


def _bodies() -> Sequence[type[BaseModel]]:
    from quire_apis.decisions.schemas import DecisionRequest

    return (DecisionRequest,)


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The route of structured decisions."""
    yield Router("decisions", _build, bodies=_bodies, scopes={"/v1/systemone": "generate"})

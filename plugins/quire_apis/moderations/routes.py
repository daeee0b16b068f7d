"""The route `/v1/moderations`: the classes of a classifier as categories."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.plugin import BadRequest, RouterContext
from quire_apis.moderations.schemas import ModerationRequest
from quire_apis.responses_of_routes import called, described, models_of_name, whole_answer

OPENAI_MODELS = ("omni-moderation", "text-moderation")
"""Beginnings of the names of OpenAI's own models, which clients send: the first classifier answers for them."""


def build_router(context: RouterContext) -> APIRouter:
    """The route, which answers with the classifiers of `context`."""
    router = APIRouter(tags=["OpenAI"])
    safe = {label.strip().lower() for label in context.options["safe"].split(",")}
    threshold: float = context.options["threshold"]

    @router.post("/v1/moderations", **described(ModerationRequest, "Classify texts as moderations"))
    async def create_moderation(request: Request) -> Response:
        fields = await context.read(request, ModerationRequest)
        model, labels = _classifier(context, fields.model)
        texts = _texts(fields)

        async def whole() -> dict[str, Any]:
            found = await called(context, request, "/classify", {"model": model, "input": texts})
            results = [_result(item["probs"], labels, safe, threshold) for item in found["data"]]
            return {"id": f"modr-{uuid.uuid4().hex}", "model": found["model"], "results": results}

        return await whole_answer(context, request, whole())

    return router


def _classifier(context: RouterContext, name: str | None) -> tuple[str, Sequence[str]]:
    """The name of the model that classifies, and its labels. Raises `BadRequest` for a model that has no classes."""
    classifiers = [info for info in context.models() if "classify" in info.tasks and info.labels]
    if name is None or name.startswith(OPENAI_MODELS):
        if not classifiers:
            raise BadRequest("No served model classifies texts.", "model")
        first = classifiers[0]
        return first.name, first.labels
    for info in models_of_name(context, name):
        if info in classifiers:
            return name, info.labels
    raise BadRequest(f"The model {name!r:.100} is not a classifier that is served.", "model")


def _texts(fields: ModerationRequest) -> list[str]:
    """The texts, one for each result; parts of one input are one text."""
    if isinstance(fields.input, str):
        return [fields.input]
    plain = [one for one in fields.input if isinstance(one, str)]
    return plain or ["\n".join(one.text for one in fields.input if not isinstance(one, str))]


def _result(probs: Sequence[float], labels: Sequence[str], safe: set[str], threshold: float) -> dict[str, Any]:
    scores = {label: prob for label, prob in zip(labels, probs, strict=True) if label.lower() not in safe}
    categories = {label: score >= threshold for label, score in scores.items()}
    return {
        "flagged": any(categories.values()),
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": {label: ["text"] for label in scores},
    }

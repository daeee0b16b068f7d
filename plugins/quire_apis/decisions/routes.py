"""The route `/v1/systemone`: structured decisions."""

from __future__ import annotations

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.plugin import RouterContext
from quire_apis.decisions.questions import TypedQuestion, typed_question
from quire_apis.decisions.reading import NUM_TOP, LabelIds, LabelRead, LabelReader, label_ids
from quire_apis.decisions.schemas import DecisionRequest
from quire_apis.responses_of_routes import described, models_of_name, whole_answer


def build_router(context: RouterContext) -> APIRouter:
    """The route, which asks the models of `context`."""
    router = APIRouter(tags=["OpenAI"])
    ids_of_labels = LabelIds(context)

    @router.post(
        "/v1/systemone", **described(DecisionRequest, "Answer typed questions about a state with probabilities")
    )
    async def decide(request: Request) -> Response:
        fields = await context.read(request, DecisionRequest)
        questions = [typed_question(name, spec) for name, spec in fields.questions.items()]
        return await whole_answer(context, request, _decided(context, request, fields, questions, ids_of_labels))

    return router


async def _decided(
    context: RouterContext,
    request: Request,
    fields: DecisionRequest,
    questions: list[TypedQuestion],
    ids_of_labels: LabelIds,
) -> dict[str, Any]:
    reader = LabelReader(context, request, fields, _num_top(context, fields.model))
    labels = dict.fromkeys(label for one in questions for option in one.options for label in option.labels)
    known = await ids_of_labels.find(request, fields.model, list(labels))
    ids = [label_ids(question, known) for question in questions]
    flat = [[one for option in options for one in option] for options in ids]
    reads = await reader.read_all(list(zip(questions, flat, strict=True)))
    answers, diagnostics = {}, {}
    for question, options, read in zip(questions, ids, reads, strict=True):
        answers[question.id], diagnostics[question.id] = _answer(question, options, read)
    return {
        "id": f"decision-{uuid.uuid4().hex}",
        "object": "structured_decision",
        "created": int(time.time()),
        "model": reads[0].model,
        "answers": answers,
        "usage": {"input_tokens": sum(read.prompt_tokens for read in reads), "output_tokens": len(reads)},
        "diagnostics": diagnostics,
    }


def _answer(
    question: TypedQuestion, options: list[list[int]], read: LabelRead
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer and the diagnostics. options: the token ids of the labels of each."""
    masses = [sum(read.probabilities[one] for one in ids) for ids in options]
    total = sum(masses)
    shares = [mass / total for mass in masses] if total > 0 else [1 / len(masses)] * len(masses)
    is_label = any(read.top in ids for ids in options)
    return question.answer(shares, total), {"label_mass": min(total, 1.0), "argmax_is_label": is_label}


def _num_top(context: RouterContext, model: str | None) -> int:
    """How many tokens a request may report: --max-logprobs of the model, or of all if it is not known by this name."""
    infos = models_of_name(context, model) or context.models()
    limits = [info.max_logprobs for info in infos if info.max_logprobs >= 0]
    return min([NUM_TOP, *limits])

"""`POST /generate`: one prompt as text or ids in, text and ids out, with fewer wrappings than OpenAI's shape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.errors import BadRequest
from quire.server import completions
from quire.server.answers import written
from quire.server.body import Body, json_body
from quire.server.errors import validate
from quire.server.models import does
from quire.server.params import refuse_unhonoured
from quire.server.routes_openai import streamed
from quire.server.schema_requests import CompletionRequest, GenerateRequest
from quire.server.schema_responses import Generated
from quire.server.service import Naming, Service
from quire.server.sse import event, unless_gone
from quire.server.streaming import stream_response
from quire.text.outputs import Piece, RequestOutput

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "text", "input_ids")
MANY_IDS = 4096
"""Ids of a prompt from which it is validated in a worker thread."""

RENAMED = {"max_new_tokens": "max_tokens"}


def native_router(service: Service) -> APIRouter:
    """`/generate`."""
    router = APIRouter(tags=["Native"])

    @router.post(
        "/generate",
        response_model=None,
        responses=streamed(Generated),
        openapi_extra=json_body(GenerateRequest),
        summary="Continue one prompt, native shape",
    )
    async def generate(request: Request) -> Response:
        served, native = await service.accept(request, GenerateRequest, does("generate"))
        many = len(native.prompt_token_ids or native.input_ids or ()) > MANY_IDS
        fields = await service.bodies.validated(Body({}, large=many), partial(as_completion, service, native))
        naming = Naming.of(request, fields.request_id)
        call = await completions.prepare(service, served, fields, naming, request.receive)
        if fields.stream:
            return await stream_response(request, _Events(call))
        return await unless_gone(request.receive, _answer(call))

    return router


def as_completion(service: Service, native: GenerateRequest) -> CompletionRequest:
    """The same request in the shape of the completions API; raises what its own checks raise."""
    given = [name for name in PROMPT_FIELDS if getattr(native, name) is not None]
    if len(given) != 1:
        raise BadRequest(
            f"Exactly one of {', '.join(f'`{name}`' for name in PROMPT_FIELDS)} is needed, got {len(given)}.", "prompt"
        )
    body: dict[str, Any] = {**(native.model_extra or {}), **(native.sampling_params or {})}
    if native.max_new_tokens is not None:
        body.setdefault("max_new_tokens", native.max_new_tokens)
    for old, new in RENAMED.items():
        if old in body:
            body[new] = body.pop(old)
    body |= {"model": native.model, "prompt": getattr(native, given[0]), "stream": native.stream}
    refuse_unhonoured(body, service.rules)
    fields: CompletionRequest = validate(CompletionRequest, body)
    if fields.adapters is not None:
        raise BadRequest("`adapters` stands beside `sampling_params`, not in it.", "adapters")
    return fields


async def _answer(call: completions.Call) -> Response:
    return await written(call.service, call.served, call.job, partial(_shape_of, call))


def _shape_of(call: completions.Call, results: Sequence[RequestOutput]) -> dict[str, Any]:
    whole = completions.shape_of(call, results)
    (result,) = results
    choices = whole["choices"]
    outputs = result.outputs[: call.n]
    columns: dict[str, list[Any]] = {
        "text": [choice["text"] for choice in choices],
        "token_ids": [[] if call.scoring else output.token_ids for output in outputs],
        "finish_reason": [choice["finish_reason"] for choice in choices],
        "stop_reason": [choice["stop_reason"] for choice in choices],
        "logprobs": [choice["logprobs"] for choice in choices],
    }
    shown = {name: values if call.n > 1 else values[0] for name, values in columns.items()}
    return {
        "id": whole["id"],
        "model": whole["model"],
        **shown,
        "prompt_token_ids": result.prompt_token_ids if call.fields.return_token_ids else None,
        "prompt_logprobs": choices[0]["prompt_logprobs"],
        "usage": whole["usage"],
    }


class _Events:
    """The stream: an event for each piece, then the usage."""

    def __init__(self, call: completions.Call) -> None:
        self._call, self.job = call, call.job
        self._common = {"id": f"cmpl-{call.naming.base}", "model": call.served.name}

    def piece(self, _: int, piece: Piece) -> bytes:
        if self._call.scoring or not (piece.text or piece.token_ids or piece.finish_reason):
            return b""
        return event(
            {
                **self._common,
                "index": piece.index,
                "text": piece.text,
                "token_ids": piece.token_ids,
                "finish_reason": piece.finish_reason,
                "stop_reason": piece.stop_reason,
            }
        )

    def last(self) -> bytes:
        return event({**self._common, "usage": completions.count_tokens(self._call)})

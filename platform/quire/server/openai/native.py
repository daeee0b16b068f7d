"""`POST /generate`: one prompt as text or token ids in; text and token ids out, in a flatter shape than OpenAI's."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.errors import BadRequest
from quire.server.http.body import Body, validate
from quire.server.http.responses import streamed_responses
from quire.server.http.sse import cancel_on_disconnect, event
from quire.server.jobs.stream_encoder import stream_response
from quire.server.openai import completions
from quire.server.schemas.requests import CompletionRequest, GenerateRequest
from quire.server.schemas.responses import Generated
from quire.server.service.answers import run_job
from quire.server.service.models import supports
from quire.server.service.request_fields import reject_unsupported
from quire.server.service.service import ResponseIds, Service, get_service
from quire.text.outputs.outputs import RequestOutput, TextDelta
from quire.types.request_model import json_body

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "text", "input_ids")
LARGE_PROMPT = 4096
"""Prompts of more token ids are validated in a worker thread."""

RENAMED_FIELDS = {"max_new_tokens": "max_tokens"}


router = APIRouter(tags=["Native"])


@router.post(
    "/generate",
    response_model=None,
    responses=streamed_responses(Generated),
    openapi_extra=json_body(GenerateRequest),
    summary="Continue one prompt, native shape",
)
async def generate(request: Request) -> Response:
    service = get_service(request)
    served, native = await service.parse_request(request, GenerateRequest, supports("generate"))
    large = len(native.prompt_token_ids or native.input_ids or ()) > LARGE_PROMPT
    fields = await service.bodies.validate(Body({}, large=large), partial(to_completion_request, service, native))
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await completions.prepare(service, served, fields, ids, request.receive)
    if fields.stream:
        return await stream_response(request, NativeStream(call))
    return await cancel_on_disconnect(request.receive, _run(call))


def to_completion_request(service: Service, native: GenerateRequest) -> CompletionRequest:
    """The request in the shape of the completions API. Raises `BadRequest` and `MalformedBody`."""
    given = [name for name in PROMPT_FIELDS if getattr(native, name) is not None]
    if len(given) != 1:
        raise BadRequest(
            f"Exactly one of {', '.join(f'`{name}`' for name in PROMPT_FIELDS)} is needed, got {len(given)}.", "prompt"
        )
    body: dict[str, Any] = {**(native.model_extra or {}), **(native.sampling_params or {})}
    if native.max_new_tokens is not None:
        body.setdefault("max_new_tokens", native.max_new_tokens)
    for old, new in RENAMED_FIELDS.items():
        if old in body:
            body[new] = body.pop(old)
    body |= {"model": native.model, "prompt": getattr(native, given[0]), "stream": native.stream}
    reject_unsupported(body, service.request_fields)
    fields: CompletionRequest = validate(CompletionRequest, body)
    if fields.adapters is not None:
        raise BadRequest("`adapters` belongs beside `sampling_params`, not in it.", "adapters")
    return fields


async def _run(call: completions.CompletionCall) -> Response:
    return await run_job(call.service, call.served, call.job, partial(_response_body, call))


def _response_body(call: completions.CompletionCall, results: Sequence[RequestOutput]) -> dict[str, Any]:
    whole = completions.response_body(call, results)
    (result,) = results
    choices = whole["choices"]
    outputs = result.outputs[: call.n]
    columns: dict[str, list[Any]] = {
        "text": [choice["text"] for choice in choices],
        "token_ids": [[] if call.prompt_only else output.token_ids for output in outputs],
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


class NativeStream:
    """Encodes the stream: an event for each text delta, then the usage."""

    def __init__(self, call: completions.CompletionCall) -> None:
        self._call, self.job = call, call.job
        self._base = {"id": f"cmpl-{call.ids.base}", "model": call.served.name}

    def events_for(self, _: int, delta: TextDelta) -> bytes:
        if self._call.prompt_only or not (delta.text or delta.token_ids or delta.finish_reason):
            return b""
        return event(
            {
                **self._base,
                "index": delta.index,
                "text": delta.text,
                "token_ids": delta.token_ids,
                "finish_reason": delta.finish_reason,
                "stop_reason": delta.stop_reason,
            }
        )

    def final_event(self) -> bytes:
        return event({**self._base, "usage": completions.usage(self._call)})

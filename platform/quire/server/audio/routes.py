"""The routes that transcribe and translate recordings of speech."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from quire.errors import BadRequest
from quire.server.audio import transcription
from quire.server.audio.stream import prepare_stream
from quire.server.http.body import Body
from quire.server.http.forms import form_body, read_form
from quire.server.http.responses import GENERATION_ERRORS
from quire.server.http.sse import cancel_on_disconnect
from quire.server.jobs.stream_encoder import stream_response
from quire.server.schemas.speech import (
    UNSUPPORTED_SPEECH_FIELDS,
    SpeechRequest,
    SpokenText,
    TranscriptionRequest,
    TranslationRequest,
)
from quire.server.service.models import supports
from quire.server.service.request_fields import reject_unsupported
from quire.server.service.service import ResponseIds, get_service

SPEECH_BODIES = (TranscriptionRequest, TranslationRequest)

_CONTENT: dict[str, Any] = {"text/plain": {}, "text/event-stream": {}}


def _route_options(body: type[BaseModel], summary: str) -> dict[str, Any]:
    success = {"model": SpokenText, "description": "The answer, or its stream.", "content": _CONTENT}
    return {
        "response_model": None,
        "responses": {200: success, **GENERATION_ERRORS},
        "openapi_extra": form_body(body, transcription.FILE),
        "summary": summary,
    }


router = APIRouter(prefix="/v1/audio", tags=["Speech"])


@router.post("/transcriptions", **_route_options(TranscriptionRequest, "Write down what is said"))
async def create_transcription(request: Request) -> Response:
    return await _transcribe(request, TranscriptionRequest, translate=False)


@router.post("/translations", **_route_options(TranslationRequest, "Translate what is said"))
async def create_translation(request: Request) -> Response:
    return await _transcribe(request, TranslationRequest, translate=True)


async def _transcribe(request: Request, schema: type[SpeechRequest], translate: bool) -> Response:
    service = get_service(request)
    form = await read_form(request)
    reject_unsupported(form.fields, service.request_fields, UNSUPPORTED_SPEECH_FIELDS)
    body = Body(transcription.parse_plugin_fields(form.fields, service.request_fields), large=False)
    task = supports("translate" if translate else "transcribe")
    served, fields = await service.validate_body(request, body, schema, task)
    data = form.files.get(transcription.FILE)
    if data is None:
        raise BadRequest("`file` is needed: a recording, as a file of the form.", transcription.FILE)
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await transcription.prepare(service, served, fields, ids, data, translate)
    if fields.stream:
        stream = await cancel_on_disconnect(request.receive, prepare_stream(call))
        return await stream_response(request, stream)
    return await cancel_on_disconnect(request.receive, transcription.run(call))

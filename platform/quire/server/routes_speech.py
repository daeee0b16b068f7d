"""The routes that take recordings of speech."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from quire.errors import BadRequest
from quire.server import speech, speech_stream
from quire.server.body import Body
from quire.server.errors import GENERATION_ERRORS
from quire.server.forms import form_body, read_form
from quire.server.models import does
from quire.server.params import refuse_unhonoured
from quire.server.schema_speech import (
    NOT_HONOURED_SPEECH,
    SpeechRequest,
    SpokenText,
    TranscriptionRequest,
    TranslationRequest,
)
from quire.server.service import Naming, Service
from quire.server.sse import unless_gone
from quire.server.streaming import stream_response

SPEECH_BODIES = (TranscriptionRequest, TranslationRequest)

_CONTENT: dict[str, Any] = {"text/plain": {}, "text/event-stream": {}}


def speech_router(service: Service) -> APIRouter:
    """`/v1/audio/transcriptions`, `/v1/audio/translations`."""
    router = APIRouter(prefix="/v1/audio", tags=["Speech"])

    @router.post("/transcriptions", **_documented(TranscriptionRequest, "Write down what is said"))
    async def create_transcription(request: Request) -> Response:
        return await _answer(service, request, TranscriptionRequest, translate=False)

    @router.post("/translations", **_documented(TranslationRequest, "Translate what is said"))
    async def create_translation(request: Request) -> Response:
        return await _answer(service, request, TranslationRequest, translate=True)

    return router


def _documented(body: type[BaseModel], summary: str) -> dict[str, Any]:
    good = {"model": SpokenText, "description": "The answer, or its stream.", "content": _CONTENT}
    return {
        "response_model": None,
        "responses": {200: good, **GENERATION_ERRORS},
        "openapi_extra": form_body(body, speech.FILE),
        "summary": summary,
    }


async def _answer(service: Service, request: Request, schema: type[SpeechRequest], translate: bool) -> Response:
    form = await read_form(request)
    refuse_unhonoured(form.fields, service.rules, NOT_HONOURED_SPEECH)
    body = speech.typed(form.fields, service.rules)
    served, fields = await service.admit(
        request, Body(body, large=False), schema, does("translate" if translate else "transcribe")
    )
    data = form.files.get(speech.FILE)
    if data is None:
        raise BadRequest("`file` is needed: a recording, as a file of the form.", speech.FILE)
    naming = Naming.of(request, fields.request_id)
    call = await speech.prepare(service, served, fields, naming, data, translate)
    if fields.stream:
        stream = await unless_gone(request.receive, speech_stream.prepare(call))
        return await stream_response(request, stream)
    return await unless_gone(request.receive, speech.answer(call))

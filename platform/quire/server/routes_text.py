"""Tokenizer routes: text to ids and back, without generating."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.errors import BadRequest
from quire.server.body import json_body
from quire.server.chat_prompt import render_template
from quire.server.errors import documented
from quire.server.models import Served
from quire.server.routes_openai import json_response
from quire.server.schema_requests import DetokenizeRequest, TokenizeRequest
from quire.server.schema_responses import Detokenized, Tokenized
from quire.server.service import LONG_TEXT, Service, off_loop

_ERRORS = documented(400, 401, 403, 404, 413, 429, 500, 503)


def text_router(service: Service) -> APIRouter:
    """`/tokenize` and `/detokenize`."""
    router = APIRouter(tags=["Tokenizer"])

    @router.post(
        "/tokenize",
        response_model=None,
        responses={200: {"model": Tokenized}, **_ERRORS},
        openapi_extra=json_body(TokenizeRequest),
        summary="Token ids of a text or a conversation",
    )
    async def tokenize(request: Request) -> Response:
        served, fields = await service.accept(request, TokenizeRequest)
        heavy = fields.messages is not None or len(fields.prompt or "") > LONG_TEXT
        return json_response(await off_loop(heavy, partial(_tokenize, service, served, fields)))

    @router.post(
        "/detokenize",
        response_model=None,
        responses={200: {"model": Detokenized}, **_ERRORS},
        openapi_extra=json_body(DetokenizeRequest),
        summary="Text of token ids",
    )
    async def detokenize(request: Request) -> Response:
        served, fields = await service.accept(request, DetokenizeRequest)
        largest = max(fields.tokens, default=0)
        if largest >= served.info.vocab_size:
            raise BadRequest(
                f"`tokens` has token id {largest}, but the vocabulary ends at {served.info.vocab_size - 1}.", "tokens"
            )
        text = await asyncio.to_thread(served.tokenizer.decode, fields.tokens, False)
        return json_response({"prompt": text})

    return router


def _tokenize(service: Service, served: Served, fields: TokenizeRequest) -> dict[str, Any]:
    if fields.messages is not None:
        text = render_template(service, served, fields, fields.messages, dict(fields.chat_template_kwargs or {}))
        special = fields.add_special_tokens or False
    else:
        text = fields.prompt or ""
        special = fields.add_special_tokens is not False
    ids = served.tokenizer.encode(text, add_special_tokens=special)
    strings = [served.tokenizer.token_string(token_id) or "" for token_id in ids] if fields.return_token_strs else None
    return {"count": len(ids), "max_model_len": served.info.max_model_len, "tokens": ids, "token_strs": strings}

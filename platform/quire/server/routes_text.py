"""Tokenizer routes: text to ids and back, without generating."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive

from quire.errors import BadRequest
from quire.server.body import json_body
from quire.server.chat_prompt import render_template
from quire.server.errors import documented
from quire.server.models import Served
from quire.server.prompts import while_wanted, with_media
from quire.server.routes_openai import json_response
from quire.server.schema_requests import DetokenizeRequest, Message, TokenizeRequest
from quire.server.schema_responses import Detokenized, Tokenized, TokenizerInfo
from quire.server.service import LONG_TEXT, Service, off_loop
from quire.server.tokenizer_info import tokenizer_info
from quire.text.inputs import InputLimits

_ERRORS = documented(400, 401, 403, 404, 413, 422, 429, 500, 503)


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
        if fields.messages is not None:
            ids = await _chat_ids(service, served, fields, fields.messages, request.receive)
        else:
            text, special = fields.prompt or "", fields.add_special_tokens is not False
            encode = partial(served.tokenizer.encode, text, add_special_tokens=special)
            ids = await off_loop(len(text) > LONG_TEXT, encode)
        return json_response(await off_loop(len(ids) > LONG_TEXT, partial(_listed, served, fields, ids)))

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

    if service.config.enable_tokenizer_info_endpoint:
        _add_info(router, service)
    return router


def _add_info(router: APIRouter, service: Service) -> None:
    @router.get(
        "/tokenizer_info",
        response_model=None,
        responses={200: {"model": TokenizerInfo}, **documented(401, 404)},
        summary="Special tokens and chat template of a model",
    )
    async def info(model: str | None = None) -> Response:
        return json_response(tokenizer_info(await service.adapters.find(model or service.models.usual())))


async def _chat_ids(
    service: Service, served: Served, fields: TokenizeRequest, messages: list[Message], receive: Receive
) -> Sequence[int]:
    """Ids of a conversation, those of its media included."""
    kwargs = dict(fields.chat_template_kwargs or {})
    rendered = await asyncio.to_thread(render_template, service, served, fields, messages, kwargs)
    special = fields.add_special_tokens or False
    if rendered.media:
        limits = InputLimits(param="messages")
        work = partial(with_media, served, rendered.text, rendered.media, limits, special)
        return (await while_wanted(service.inflight, receive, work)).token_ids
    return await asyncio.to_thread(served.tokenizer.encode, rendered.text, add_special_tokens=special)


def _listed(served: Served, fields: TokenizeRequest, ids: Sequence[int]) -> dict[str, Any]:
    strings = [served.tokenizer.token_string(token_id) or "" for token_id in ids] if fields.return_token_strs else None
    return {"count": len(ids), "max_model_len": served.info.max_model_len, "tokens": ids, "token_strs": strings}

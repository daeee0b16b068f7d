"""Tokenizer routes: text to ids and back, without generating."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive

from quire.server.body import json_body
from quire.server.chat_prompt import render_template
from quire.server.errors import documented
from quire.server.models import Served
from quire.server.prompts import tokenizing, while_wanted, with_media
from quire.server.routes_openai import json_response
from quire.server.schema_requests import DetokenizeRequest, TokenizeRequest
from quire.server.schema_responses import Detokenized, Tokenized, TokenizerInfo
from quire.server.service import Service
from quire.server.tokenizer_info import tokenizer_info
from quire.text.inputs import InputLimits, cut, encoded, worth_tokenizing
from quire.text.long_texts import Wanted

IDS_AT_ONCE = 1 << 14
"""Ids that are written as JSON in one go: other threads get their turn between two."""

_ERRORS = documented(400, 401, 403, 404, 413, 415, 422, 429, 500, 503)


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
        limits = InputLimits(max_chars=service.config.max_text_chars)
        if fields.messages is not None:
            limits = replace(limits, param="messages")
            text, special = "", fields.add_special_tokens or False
            kwargs = dict(fields.chat_template_kwargs or {})
            rendered = await asyncio.to_thread(render_template, service, served, fields, fields.messages, kwargs)
            if rendered.media:
                place = partial(with_media, served, rendered.text, rendered.media, limits, special)
                prompt = await while_wanted(service.inflight, request.receive, place)
                return await _answer(service, served, fields, request.receive, prompt.token_ids)
            text = rendered.text
        else:
            text, special = fields.prompt or "", fields.add_special_tokens is not False

        def encode(wanted: Wanted) -> list[int]:
            within = replace(limits, wanted=wanted)
            return encoded(worth_tokenizing(text, served.tokenizer, within), served.tokenizer, within, special)

        ids = await tokenizing(service, request.receive, len(text), encode)
        return await _answer(service, served, fields, request.receive, ids)

    @router.post(
        "/detokenize",
        response_model=None,
        responses={200: {"model": Detokenized}, **_ERRORS},
        openapi_extra=json_body(DetokenizeRequest),
        summary="Text of token ids",
    )
    async def detokenize(request: Request) -> Response:
        served, fields = await service.accept(request, DetokenizeRequest)
        limits = InputLimits(vocab_size=served.info.vocab_size, param="tokens")
        decode = partial(served.tokenizer.decode, skip_special_tokens=False)
        text = await tokenizing(
            service, request.receive, len(fields.tokens), lambda _: decode(cut(fields.tokens, limits))
        )
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


async def _answer(
    service: Service, served: Served, fields: TokenizeRequest, receive: Receive, ids: Sequence[int]
) -> Response:
    """The ids in the shape of the wire; many are written in a worker thread, some at a time."""
    head = {"count": len(ids), "max_model_len": served.info.max_model_len}
    string = served.tokenizer.token_string

    def write(_: Wanted) -> bytes:
        strings = b"null"
        if fields.return_token_strs:
            strings = _list([string(token_id) or "" for token_id in some] for some in _parts(ids))
        body = msgspec.json.encode(head)[:-1] + b',"tokens":' + _list(_parts(ids)) + b',"token_strs":' + strings + b"}"
        return body

    return Response(await tokenizing(service, receive, len(ids), write), media_type="application/json")


def _parts(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(ids), IDS_AT_ONCE):
        yield ids[begin : begin + IDS_AT_ONCE]


def _list(parts: Iterable[Sequence[object]]) -> bytes:
    """One JSON list of lists that follow each other."""
    return b"[" + b",".join(msgspec.json.encode(part)[1:-1] for part in parts) + b"]"

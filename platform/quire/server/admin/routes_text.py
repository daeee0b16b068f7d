"""The routes of tokenizers: text to token ids and back, and information on a tokenizer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from quire.server.http.responses import error_responses, json_response
from quire.server.openai.chat_prompt import render_template
from quire.server.residency.leases import leases_of
from quire.server.schemas.requests import DetokenizeRequest, TokenizeRequest
from quire.server.schemas.responses import Detokenized, Tokenized, TokenizerInfo
from quire.server.service.models import ServedModel
from quire.server.service.prompts import run_text_work, run_until_disconnect, tokenize_with_media
from quire.server.service.service import get_service
from quire.text.inputs.inputs import InputLimits, truncate, truncate_chars
from quire.text.tokenizer.files import NAMED_TOKENS
from quire.text.tokenizer.long_texts import ShouldContinue
from quire.types.request_model import json_body

DEFAULT_TOKENIZER_CLASS = "PreTrainedTokenizerFast"

_ERRORS = error_responses(400, 401, 403, 404, 413, 415, 422, 429, 500, 503)


router = APIRouter(tags=["Tokenizer"])
info_router = APIRouter(tags=["Tokenizer"])
"""Only part of the application with `enable_tokenizer_info_endpoint`."""


@router.post(
    "/tokenize",
    response_model=None,
    responses={200: {"model": Tokenized}, **_ERRORS},
    openapi_extra=json_body(TokenizeRequest),
    summary="Token ids of a text or a conversation",
)
async def tokenize(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, TokenizeRequest)
    limits = InputLimits(max_chars=service.config.max_text_chars)
    if fields.messages is not None:
        limits = replace(limits, param="messages")
        text, special = "", fields.add_special_tokens or False
        kwargs = dict(fields.chat_template_kwargs or {})
        rendered = await asyncio.to_thread(render_template, service, served, fields, fields.messages, kwargs)
        if rendered.media:
            work = partial(tokenize_with_media, served, rendered.text, rendered.media, limits, special)
            prompt = await run_until_disconnect(service.inflight, request.receive, work)
            body = _encode_tokens(served, fields, [prompt.token_ids])
            return Response(body, media_type="application/json")
        text = rendered.text
    else:
        text, special = fields.prompt or "", fields.add_special_tokens is not False

    def encode(should_continue: ShouldContinue) -> bytes:
        limited = truncate_chars(text, served.tokenizer, replace(limits, should_continue=should_continue))
        return _encode_tokens(served, fields, served.tokenizer.encode_blocks(limited, special, should_continue))

    body = await run_text_work(service, request.receive, len(text), encode)
    return Response(body, media_type="application/json")


@router.post(
    "/detokenize",
    response_model=None,
    responses={200: {"model": Detokenized}, **_ERRORS},
    openapi_extra=json_body(DetokenizeRequest),
    summary="Text of token ids",
)
async def detokenize(request: Request) -> Response:
    service = get_service(request)
    served, fields = await service.parse_request(request, DetokenizeRequest)
    limits = InputLimits(vocab_size=served.info.vocab_size, param="tokens")
    decode = partial(served.tokenizer.decode, skip_special_tokens=False)
    text = await run_text_work(
        service, request.receive, len(fields.tokens), lambda _: decode(truncate(fields.tokens, limits))
    )
    return json_response({"prompt": text})


@info_router.get(
    "/tokenizer_info",
    response_model=None,
    responses={200: {"model": TokenizerInfo}, **error_responses(401, 404)},
    summary="Special tokens and chat template of a model",
)
async def info(request: Request, model: str | None = None) -> Response:
    service = get_service(request)
    name = model or service.residency.registrations.default_for()
    served = await service.find_model(name, leases_of(request.scope), receive=request.receive)
    return json_response(tokenizer_info(served))


def tokenizer_info(served: ServedModel) -> dict[str, Any]:
    """Special tokens (null where there is none), lengths, and the chat template in use, as vLLM answers it."""
    tokenizer, template = served.tokenizer, served.template
    return {
        "model": served.name,
        "tokenizer_class": tokenizer.class_name or DEFAULT_TOKENIZER_CLASS,
        **{name: tokenizer.special_tokens.get(name) for name in NAMED_TOKENS},
        "additional_special_tokens": list(tokenizer.extra_special_tokens),
        "model_max_length": served.info.max_model_len,
        "vocab_size": served.info.vocab_size,
        "chat_template": template.default_template if template is not None else None,
    }


def _encode_tokens(served: ServedModel, fields: TokenizeRequest, chunks: Iterable[Sequence[int]]) -> bytes:
    """The response as JSON, encoded chunk by chunk: one list of all ids of a long text would take long to free."""
    count, ids, strings = 0, [], []
    string = served.tokenizer.token_string
    for chunk in chunks:
        if chunk:
            count += len(chunk)
            ids.append(msgspec.json.encode(chunk)[1:-1])
            if fields.return_token_strs:
                strings.append(msgspec.json.encode([string(token_id) or "" for token_id in chunk])[1:-1])
    head = msgspec.json.encode({"count": count, "max_model_len": served.info.max_model_len})
    listed = b"[" + b",".join(strings) + b"]" if fields.return_token_strs else b"null"
    return b"".join([head[:-1], b',"tokens":[', b",".join(ids), b'],"token_strs":', listed, b"}"])

"""Prepares and runs the endpoints of pooling models that take single inputs: embeddings, classes, pooler outputs.

Scores, which take two texts, are in `quire.server.pooling.scores`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive

from quire.errors import BadRequest
from quire.params.pooling import PoolingParams, PoolingResult
from quire.server.jobs.pooling import PoolingJob
from quire.server.openai import format as wire
from quire.server.openai.chat_prompt import render_template
from quire.server.pooling.embedding_format import number_encoder, raw_bytes
from quire.server.schemas.pooling import CommonFields, EncodingFields, InputFields, PoolingFields
from quire.server.service.answers import check_token_vectors
from quire.server.service.models import ServedModel
from quire.server.service.prompts import requests_of, run_text_work, run_until_disconnect, tokenize_with_media
from quire.server.service.request_fields import check_cache_salt
from quire.server.service.service import ResponseIds, Service
from quire.text.inputs.inputs import InputLimits
from quire.text.inputs.pooling_inputs import pooled_prompts
from quire.text.tokenizer.long_texts import ShouldContinue
from quire.types import Prompt
from quire.types.request_validation import check_pooling

MANY_NUMBERS = 1 << 14
"""Answers with more numbers are encoded in a worker thread."""


@dataclass(frozen=True, kw_only=True)
class PoolingCall:
    """A prepared call of an endpoint. prefix: begins the id of the answer."""

    service: Service
    served: ServedModel
    ids: ResponseIds
    prefix: str
    created: int
    job: PoolingJob

    def base_fields(self) -> dict[str, Any]:
        """The fields that all answers have."""
        return {
            "id": f"{self.prefix}{self.ids.base}",
            "object": "list",
            "created": self.created,
            "model": self.served.name,
        }

    def usage(self) -> dict[str, Any]:
        """The usage object; pooling has no output tokens."""
        detailed = self.service.config.enable_prompt_tokens_details
        return wire.usage(self.job.num_prompt_tokens, 0, self.job.num_cached_tokens if detailed else None)


async def prepare(
    service: Service,
    served: ServedModel,
    fields: InputFields,
    ids: ResponseIds,
    params: PoolingParams,
    prefix: str,
    receive: Receive,
) -> PoolingCall:
    """Check the fields, render and tokenize; nothing runs yet. receive: notices a disconnect."""
    check_pooling(params, served.info)
    prompts = await _prompts(service, served, fields, receive)
    return make_call(service, served, fields, ids, prompts, params, prefix)


def make_call(
    service: Service,
    served: ServedModel,
    fields: CommonFields,
    ids: ResponseIds,
    prompts: Sequence[Prompt],
    params: PoolingParams,
    prefix: str,
) -> PoolingCall:
    """A prepared call that pools these prompts."""
    check_cache_salt(fields.cache_salt)
    check_token_vectors(params, prompts, served.info, service.config.max_response_bytes)
    job = service.pooling_job(served, requests_of(served, prompts, params, fields, ids, prefix))
    return PoolingCall(service=service, served=served, ids=ids, prefix=prefix, created=int(time.time()), job=job)


async def _prompts(service: Service, served: ServedModel, fields: InputFields, receive: Receive) -> list[Prompt]:
    if (fields.input is None) == (fields.messages is None):
        raise BadRequest("Exactly one of `input` and `messages` is needed.", "input")
    values: Sequence[str | Sequence[int]]
    if fields.messages is not None:
        kwargs = dict(fields.chat_template_kwargs or {})
        rendered = await asyncio.to_thread(render_template, service, served, fields, fields.messages, kwargs)
        special, param = fields.add_special_tokens or False, "messages"
        if rendered.media:
            limits = input_limits(service, served, fields, param)
            tokenize = partial(tokenize_with_media, served, rendered.text, rendered.media, limits, special)
            return [await run_until_disconnect(service.inflight, receive, tokenize)]
        values = [rendered.text]
    else:
        values = _values(fields.input)
        check_count(service, len(values), "input")
        check_not_empty(values, "input")
        special, param = fields.add_special_tokens is not False, "input"
    limits = input_limits(service, served, fields, param)

    def work(should_continue: ShouldContinue) -> list[Prompt]:
        return pooled_prompts(values, served.tokenizer, replace(limits, should_continue=should_continue), special)

    return await run_text_work(service, receive, sum(map(len, values)), work)


def _values(given: Any) -> list[str | list[int]]:
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


def check_not_empty(values: Sequence[Sized], param: str) -> None:
    """Raise `BadRequest` for an empty input, which would consist of special tokens only."""
    for number, value in enumerate(values):
        if not value:
            what = f"`{param}`" if len(values) == 1 else f"Item {number} of `{param}`"
            raise BadRequest(f"{what} must not be empty.", param)


def check_count(service: Service, count: int, param: str) -> None:
    """Raise `BadRequest` for more inputs than the server accepts in a request."""
    max_inputs = service.config.max_pooling_inputs
    if count > max_inputs:
        raise BadRequest(f"`{param}` may have at most {max_inputs} items (--max-pooling-inputs), got {count}.", param)


def input_limits(service: Service, served: ServedModel, fields: PoolingFields, param: str) -> InputLimits:
    """The limits of a prompt, which may fill the context because nothing is generated."""
    return InputLimits(
        max_model_len=served.info.max_model_len,
        vocab_size=served.info.vocab_size,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        truncation_side=fields.truncation_side or "right",
        param=param,
        max_chars=service.config.max_text_chars,
    )


async def run(call: PoolingCall, item: Callable[[int, PoolingResult], dict[str, Any]]) -> Response:
    """Run to the end and return the answer. item: turns the number of an input and its result into an item."""
    results = await call.job.results()

    def encode() -> bytes:
        # Encoded one item at a time, so that other threads can run.
        items = [msgspec.Raw(msgspec.json.encode(item(number, result))) for number, result in enumerate(results)]
        return msgspec.json.encode({**call.base_fields(), "data": items, "usage": call.usage()})

    return Response(await call.service.encode(is_large(_size(results)), encode), media_type="application/json")


async def run_vectors(call: PoolingCall, fields: EncodingFields, kind: str, name: str) -> Response:
    """Run to the end and return the answer with numbers in the requested encoding.

    kind: the value of `object` of each item. name: the field of an item with its numbers.
    """
    if fields.encoding_format in ("bytes", "bytes_only"):
        return await _run_bytes(call, fields)
    encode = number_encoder(fields)
    return await run(call, lambda number, result: {"index": number, "object": kind, name: encode(result)})


async def _run_bytes(call: PoolingCall, fields: EncodingFields) -> Response:
    """The numbers of all inputs as bytes; the header `metadata` has the offsets of each input."""
    results = await call.job.results()
    parts = await call.service.encode(
        is_large(_size(results)), lambda: [raw_bytes(result, fields) for result in results]
    )
    headers = {}
    if fields.encoding_format == "bytes":
        items, end = [], 0
        for number, (result, part) in enumerate(zip(results, parts, strict=True)):
            start, end = end, end + len(part)
            offsets = {"index": number, "start": start, "end": end, "shape": result.shape}
            items.append({**offsets, "embed_dtype": fields.embed_dtype, "endianness": fields.endianness})
        headers["metadata"] = json.dumps({**call.base_fields(), "data": items, "usage": call.usage()})
    return Response(b"".join(parts), media_type="application/octet-stream", headers=headers)


def _size(results: Sequence[PoolingResult]) -> int:
    return sum(len(result.data) for result in results)


def is_large(size: int) -> bool:
    """Whether vectors of `size` bytes in float32 take long to encode."""
    return size > 4 * MANY_NUMBERS


def class_item(served: ServedModel) -> Callable[[int, PoolingResult], dict[str, Any]]:
    """Makes the item of an input: the scores of all classes, and the label of the best."""
    labels = served.info.labels

    def item(number: int, result: PoolingResult) -> dict[str, Any]:
        scores = result.numbers()
        best = int(scores.argmax())
        label = labels[best] if best < len(labels) else None
        return {"index": number, "label": label, "probs": scores.tolist(), "num_classes": len(scores)}

    return item


def default_task(served: ServedModel) -> str:
    """The task of `/pooling` without `task`: a token-wise one if the model supports it, as in vLLM."""
    tasks = served.info.tasks
    for task in ("token_embed", "token_classify", "embed", "classify"):
        if task in tasks:
            return task
    return "embed"

"""Embeddings, classes and what else poolers give: inputs in, one result for each, in the shapes of the wire.

Scores, which take two texts, are `quire.server.scores`.
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
from quire.pooling import Pooled, PoolingParams, check_pooling
from quire.server import wire
from quire.server.answer_size import check_token_vectors
from quire.server.chat_prompt import render_template
from quire.server.models import Served
from quire.server.params import check_cache_salt
from quire.server.pooling_job import PoolingJob
from quire.server.prompts import tokenizing, while_wanted, with_media
from quire.server.schema_pooling import CommonFields, EncodingFields, InputFields, PoolingFields
from quire.server.service import Naming, Service
from quire.server.vectors import json_value, raw_bytes
from quire.text.inputs import InputLimits
from quire.text.long_texts import Wanted
from quire.text.pooled_inputs import pooled_prompts
from quire.types import Prompt, Request

MANY_NUMBERS = 1 << 14
"""Numbers from which an answer is written in a worker thread."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of an endpoint, ready to run. prefix: of its id."""

    service: Service
    served: Served
    naming: Naming
    prefix: str
    created: int
    job: PoolingJob

    def common(self) -> dict[str, Any]:
        """What all answers say."""
        return {
            "id": f"{self.prefix}{self.naming.base}",
            "object": "list",
            "created": self.created,
            "model": self.served.name,
        }

    def usage(self) -> dict[str, Any]:
        """Tokens read."""
        detailed = self.service.config.enable_prompt_tokens_details
        return wire.usage(self.job.num_prompt_tokens, 0, self.job.num_cached_tokens if detailed else None)


async def prepare(
    service: Service,
    served: Served,
    fields: InputFields,
    naming: Naming,
    params: PoolingParams,
    prefix: str,
    receive: Receive,
) -> Call:
    """Check, render and tokenize; nothing runs yet. receive: tells when the client is gone."""
    check_pooling(params, served.info)
    prompts = await _prompts(service, served, fields, receive)
    return make_call(service, served, fields, naming, prompts, params, prefix)


def make_call(
    service: Service,
    served: Served,
    fields: CommonFields,
    naming: Naming,
    prompts: Sequence[Prompt],
    params: PoolingParams,
    prefix: str,
) -> Call:
    """A call that pools these prompts."""
    check_cache_salt(fields.cache_salt)
    check_token_vectors(params, prompts, served.info, service.config.max_response_bytes)
    requests = [
        Request(
            id=naming.engine_id(prefix, number),
            prompt=prompt,
            params=params,
            adapters=served.adapters,
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            client=naming.client,
        )
        for number, prompt in enumerate(prompts)
    ]
    job = service.pooling_job(served, requests)
    return Call(service=service, served=served, naming=naming, prefix=prefix, created=int(time.time()), job=job)


async def _prompts(service: Service, served: Served, fields: InputFields, receive: Receive) -> list[Prompt]:
    if (fields.input is None) == (fields.messages is None):
        raise BadRequest("Exactly one of `input` and `messages` is needed.", "input")
    values: Sequence[str | Sequence[int]]
    if fields.messages is not None:
        kwargs = dict(fields.chat_template_kwargs or {})
        rendered = await asyncio.to_thread(render_template, service, served, fields, fields.messages, kwargs)
        special, param = fields.add_special_tokens or False, "messages"
        if rendered.media:
            limits = limits_of(service, served, fields, param)
            place = partial(with_media, served, rendered.text, rendered.media, limits, special)
            return [await while_wanted(service.inflight, receive, place)]
        values = [rendered.text]
    else:
        values = _values(fields.input)
        check_count(service, len(values), "input")
        check_filled(values, "input")
        special, param = fields.add_special_tokens is not False, "input"
    limits = limits_of(service, served, fields, param)

    def work(wanted: Wanted) -> list[Prompt]:
        return pooled_prompts(values, served.tokenizer, replace(limits, wanted=wanted), special)

    return await tokenizing(service, receive, sum(map(len, values)), work)


def _values(given: Any) -> list[str | list[int]]:
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)


def check_filled(values: Sequence[Sized], param: str) -> None:
    """Refuse empty inputs: special tokens alone mean nothing."""
    for number, value in enumerate(values):
        if not value:
            what = f"`{param}`" if len(values) == 1 else f"Item {number} of `{param}`"
            raise BadRequest(f"{what} must not be empty.", param)


def check_count(service: Service, count: int, param: str) -> None:
    """Refuse more inputs than a request may have."""
    most = service.config.max_pooling_inputs
    if count > most:
        raise BadRequest(f"`{param}` may have at most {most} items (--max-pooling-inputs), got {count}.", param)


def limits_of(service: Service, served: Served, fields: PoolingFields, param: str) -> InputLimits:
    """What a prompt must keep to; nothing is generated, so it may fill the context."""
    return InputLimits(
        max_model_len=served.info.max_model_len,
        vocab_size=served.info.vocab_size,
        truncate_prompt_tokens=fields.truncate_prompt_tokens,
        truncation_side=fields.truncation_side or "right",
        param=param,
        max_chars=service.config.max_text_chars,
    )


async def answer(call: Call, item: Callable[[int, Pooled], dict[str, Any]]) -> Response:
    """Run to the end; the answer, with what `item` makes of each result."""
    results = await call.job.results()

    def write() -> bytes:
        # An item at a time: other threads get their turn between two.
        items = [msgspec.Raw(msgspec.json.encode(item(number, result))) for number, result in enumerate(results)]
        return msgspec.json.encode({**call.common(), "data": items, "usage": call.usage()})

    return Response(await call.service.written(_is_large(results), write), media_type="application/json")


async def vectors(call: Call, fields: EncodingFields, kind: str, name: str) -> Response:
    """Run to the end; the answer with numbers as the request wants them: objects called `kind`, numbers in `name`."""
    if fields.encoding_format in ("bytes", "bytes_only"):
        return await _bytes(call, fields)
    value = json_value(fields)
    return await answer(call, lambda number, result: {"index": number, "object": kind, name: value(result)})


async def _bytes(call: Call, fields: EncodingFields) -> Response:
    """All numbers in a row; a header says where those of each input begin and end."""
    results = await call.job.results()
    parts = await call.service.written(_is_large(results), lambda: [raw_bytes(result, fields) for result in results])
    headers = {}
    if fields.encoding_format == "bytes":
        items, end = [], 0
        for number, (result, part) in enumerate(zip(results, parts, strict=True)):
            start, end = end, end + len(part)
            place = {"index": number, "start": start, "end": end, "shape": result.shape}
            items.append({**place, "embed_dtype": fields.embed_dtype, "endianness": fields.endianness})
        headers["metadata"] = json.dumps({**call.common(), "data": items, "usage": call.usage()})
    return Response(b"".join(parts), media_type="application/octet-stream", headers=headers)


def _is_large(results: Sequence[Pooled]) -> bool:
    return sum(len(result.data) for result in results) > 4 * MANY_NUMBERS


def classified(served: Served) -> Callable[[int, Pooled], dict[str, Any]]:
    """What is told of the scores of classes."""
    labels = served.info.labels

    def item(number: int, result: Pooled) -> dict[str, Any]:
        scores = result.numbers()
        best = int(scores.argmax())
        label = labels[best] if best < len(labels) else None
        return {"index": number, "label": label, "probs": scores.tolist(), "num_classes": len(scores)}

    return item


def default_task(served: Served) -> str:
    """What `/pooling` gives unless told otherwise: something of each token where the model can, as vLLM does."""
    tasks = served.info.tasks
    for task in ("token_embed", "token_classify", "embed", "classify"):
        if task in tasks:
            return task
    return "embed"

"""Prepares and runs `/v2/embed` and `/v1/embed`: embeddings in the shape of Cohere's API, in one or several types.

The 8-bit types of a vector x with d numbers and length 1: int8 = round(127 · x / s), clipped to ±127, with
s = min(1, 8 / √d); uint8 = int8 + 128. The numbers of x have a standard deviation of about 1 / √d, so values up to
eight standard deviations are not clipped. s depends only on d, so dot products of vectors stay comparable.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive

from quire.errors import BadRequest
from quire.params.pooling import PoolingParams, PoolingResult
from quire.server.pooling.pooling import PoolingCall, check_count, check_not_empty, is_large, make_call
from quire.server.schemas.pooling import CohereEmbedRequest
from quire.server.service.models import ServedModel
from quire.server.service.prompts import run_text_work
from quire.server.service.service import ResponseIds, Service
from quire.text.inputs.inputs import InputLimits
from quire.text.inputs.pooling_inputs import pooled_prompts
from quire.text.tokenizer.long_texts import ShouldContinue
from quire.types import Prompt
from quire.types.request_validation import check_pooling

RANGE = 8.0
"""Values beyond this many standard deviations are clipped in 8-bit types."""

LEVELS = 127


async def prepare(
    service: Service, served: ServedModel, fields: CohereEmbedRequest, ids: ResponseIds, receive: Receive
) -> PoolingCall:
    """Check the fields and tokenize; nothing runs yet. receive: notices a disconnect."""
    params = _params(served, fields)
    texts, param = texts_of(fields), "texts" if fields.inputs is None else "inputs"
    check_count(service, len(texts), param)
    check_not_empty(texts, param)
    limits = _limits(service, served, fields, param)

    def work(should_continue: ShouldContinue) -> list[Prompt]:
        return pooled_prompts(texts, served.tokenizer, replace(limits, should_continue=should_continue))

    prompts = await run_text_work(service, receive, sum(map(len, texts)), work)
    return make_call(service, served, fields, ids, prompts, params, "embd-")


def _params(served: ServedModel, fields: CohereEmbedRequest) -> PoolingParams:
    try:
        params = PoolingParams(task="embed", dimensions=fields.output_dimension)
        check_pooling(params, served.info)
        return params
    except BadRequest as error:
        if error.param != "dimensions":
            raise
        raise BadRequest(error.message.replace("`dimensions`", "`output_dimension`"), "output_dimension") from error


def texts_of(fields: CohereEmbedRequest) -> list[str]:
    """The texts to embed; raises `BadRequest` unless exactly one of `texts` and `inputs` is given."""
    if (fields.texts is None) == (fields.inputs is None):
        raise BadRequest("Exactly one of `texts` and `inputs` is needed.", "texts")
    if fields.texts is not None:
        return fields.texts
    return ["".join(part.text for part in given.content) for given in fields.inputs or ()]


def _limits(service: Service, served: ServedModel, fields: CohereEmbedRequest, param: str) -> InputLimits:
    max_tokens = min(fields.max_tokens or served.info.max_model_len, served.info.max_model_len)
    return InputLimits(
        max_model_len=max_tokens,
        vocab_size=served.info.vocab_size,
        truncate_prompt_tokens=None if fields.truncate == "NONE" else max_tokens,
        truncation_side="left" if fields.truncate == "START" else "right",
        param=param,
        max_chars=service.config.max_text_chars,
    )


async def run(call: PoolingCall, fields: CohereEmbedRequest, version: int) -> Response:
    """Run to the end and return the answer. version: of Cohere's API, 1 or 2."""
    results = await call.job.results()
    types = dict.fromkeys(fields.embedding_types or ("float",))
    size = len(types) * sum(len(result.data) for result in results)

    def encode() -> bytes:
        embeddings: dict[str, list[msgspec.Raw]] = {name: _in_type(results, name) for name in types}
        body = _body(call, fields, embeddings)
        return msgspec.json.encode(body if version == 2 else _as_v1(body, fields))

    return Response(await call.service.encode(is_large(size), encode), media_type="application/json")


def _body(call: PoolingCall, fields: CohereEmbedRequest, embeddings: dict[str, list[msgspec.Raw]]) -> dict[str, Any]:
    return {
        "id": call.base_fields()["id"],
        "embeddings": embeddings,
        "texts": texts_of(fields),
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": call.job.num_prompt_tokens},
        },
        "response_type": "embeddings_by_type",
    }


def _as_v1(body: dict[str, Any], fields: CohereEmbedRequest) -> dict[str, Any]:
    meta = {**body["meta"], "api_version": {"version": "1"}}
    if fields.embedding_types:
        return {**body, "meta": meta}
    return {**body, "embeddings": body["embeddings"]["float"], "meta": meta, "response_type": "embeddings_floats"}


def _in_type(results: Sequence[PoolingResult], name: str) -> list[msgspec.Raw]:
    # Encoded one vector at a time, so that other threads can run.
    return [msgspec.Raw(msgspec.json.encode(_vector(result, name))) for result in results]


def _vector(result: PoolingResult, name: str) -> list[float] | list[int] | str:
    if name == "float":
        numbers: list[float] = result.numbers().tolist()
        return numbers
    if name == "base64":
        return base64.b64encode(result.data).decode()
    if name in ("int8", "uint8"):
        return _bytes(result, signed=name == "int8")
    return _bits(result, signed=name == "binary")


def _bytes(result: PoolingResult, signed: bool) -> list[int]:
    """The 8-bit type of a vector; the module docstring has the formula."""
    import numpy as np

    numbers = result.numbers().astype(np.float64)
    scale = min(1.0, RANGE / math.sqrt(numbers.size)) * float(np.linalg.norm(numbers) or 1.0)
    levels = np.clip(np.rint(numbers * (LEVELS / scale)), -LEVELS, LEVELS).astype(np.int64)
    values: list[int] = (levels if signed else levels + 128).tolist()
    return values


def _bits(result: PoolingResult, signed: bool) -> list[int]:
    """One bit per number, 1 if it is above 0; eight bits per byte, the highest first. signed: bytes minus 128."""
    import numpy as np

    packed: list[int] = np.packbits(result.numbers() > 0).tolist()
    return [byte - 128 for byte in packed] if signed else packed

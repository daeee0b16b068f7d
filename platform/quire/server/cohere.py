"""`/v2/embed`: embeddings in the shape of Cohere's API, several forms of them at once if asked for.

Forms of eight bits, of a vector x of d numbers at length 1: int8 = round(127 · x / s), cut to ±127, with
s = min(1, 8 / √d); uint8 = int8 + 128. A number of such a vector is about 1 / √d, and s leaves room for eight times
that; it depends on d alone, so that products of vectors can be compared.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from starlette.types import Receive

from quire.errors import BadRequest
from quire.pooling import Pooled, PoolingParams, check_pooling
from quire.server.models import Served
from quire.server.pooling import Call, check_count, check_filled, make_call
from quire.server.prompts import tokenizing
from quire.server.schema_pooling import CohereEmbedRequest
from quire.server.service import Naming, Service
from quire.text.inputs import InputLimits
from quire.text.long_texts import Wanted
from quire.text.pooled_inputs import pooled_prompts
from quire.types import Prompt

RANGE = 8.0
"""Standard deviations of a vector's numbers that a form of eight bits has room for."""
LEVELS = 127


async def prepare(
    service: Service, served: Served, fields: CohereEmbedRequest, naming: Naming, receive: Receive
) -> Call:
    """Check and tokenize; nothing runs yet. receive: tells when the client is gone."""
    params = _params(served, fields)
    texts, param = texts_of(fields), "texts" if fields.inputs is None else "inputs"
    check_count(service, len(texts), param)
    check_filled(texts, param)
    limits = _limits(service, served, fields, param)

    def work(wanted: Wanted) -> list[Prompt]:
        return pooled_prompts(texts, served.tokenizer, replace(limits, wanted=wanted))

    prompts = await tokenizing(service, receive, sum(map(len, texts)), work)
    return make_call(service, served, fields, naming, prompts, params, "embd-")


def _params(served: Served, fields: CohereEmbedRequest) -> PoolingParams:
    try:
        params = PoolingParams(task="embed", dimensions=fields.output_dimension)
        check_pooling(params, served.info)
        return params
    except BadRequest as error:
        if error.param != "dimensions":
            raise
        raise BadRequest(error.message.replace("`dimensions`", "`output_dimension`"), "output_dimension") from error


def texts_of(fields: CohereEmbedRequest) -> list[str]:
    """What is to be embedded; raises BadRequest unless exactly one field says it."""
    if (fields.texts is None) == (fields.inputs is None):
        raise BadRequest("Exactly one of `texts` and `inputs` is needed.", "texts")
    if fields.texts is not None:
        return fields.texts
    return ["".join(part.text for part in one.content) for one in fields.inputs or ()]


def _limits(service: Service, served: Served, fields: CohereEmbedRequest, param: str) -> InputLimits:
    most = min(fields.max_tokens or served.info.max_model_len, served.info.max_model_len)
    return InputLimits(
        max_model_len=most,
        vocab_size=served.info.vocab_size,
        truncate_prompt_tokens=None if fields.truncate == "NONE" else most,
        truncation_side="left" if fields.truncate == "START" else "right",
        param=param,
        max_chars=service.config.max_text_chars,
    )


async def answer(call: Call, fields: CohereEmbedRequest) -> dict[str, Any]:
    """Run to the end; the whole answer."""
    results = await call.job.results()
    types = dict.fromkeys(fields.embedding_types or ("float",))
    return {
        "id": call.common()["id"],
        "embeddings": {name: _in_type(results, name) for name in types},
        "texts": texts_of(fields),
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": call.job.num_prompt_tokens},
        },
        "response_type": "embeddings_by_type",
    }


def as_v1(whole: dict[str, Any], fields: CohereEmbedRequest) -> dict[str, Any]:
    """The same answer in the shape of the API's first version."""
    meta = {**whole["meta"], "api_version": {"version": "1"}}
    if fields.embedding_types:
        return {**whole, "meta": meta}
    return {**whole, "embeddings": whole["embeddings"]["float"], "meta": meta, "response_type": "embeddings_floats"}


def _in_type(results: Sequence[Pooled], name: str) -> list[Any]:
    if name == "float":
        return [result.numbers().tolist() for result in results]
    if name == "base64":
        return [base64.b64encode(result.data).decode() for result in results]
    if name in ("int8", "uint8"):
        return [_bytes(result, signed=name == "int8") for result in results]
    return [_bits(result, signed=name == "binary") for result in results]


def _bytes(result: Pooled, signed: bool) -> list[int]:
    """A byte for each number, see above."""
    import numpy as np

    numbers = result.numbers().astype(np.float64)
    scale = min(1.0, RANGE / math.sqrt(numbers.size)) * float(np.linalg.norm(numbers) or 1.0)
    levels = np.clip(np.rint(numbers * (LEVELS / scale)), -LEVELS, LEVELS).astype(np.int64)
    made: list[int] = (levels if signed else levels + 128).tolist()
    return made


def _bits(result: Pooled, signed: bool) -> list[int]:
    """A bit for each number, 1 if it is above 0, eight in a byte, the first the highest; signed: less 128."""
    import numpy as np

    packed: list[int] = np.packbits(result.numbers() > 0).tolist()
    return [byte - 128 for byte in packed] if signed else packed

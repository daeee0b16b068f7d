"""Reading a JSON body: strict about form, silent about meaning.

FastAPI's own reading takes NaN, lone surrogates and any depth; routes here read the body themselves so
that gates can look at it before it is validated. It knows no schema.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from quire.server.errors import Malformed
from quire.server.json_bounds import MAX_DEPTH, check_bounds
from quire.server.unpack import check_encoding, unpacked
from quire.server.workers import Workers
from quire.text.long_texts import Wanted

T = TypeVar("T")

LARGE_BODY = 64 << 10
"""Bytes from which a body is parsed and validated in a worker thread, which costs more than it saves below."""


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON object that was read. large: what looks at all of it does so in a worker thread."""

    value: dict[str, Any]
    large: bool


class Bodies:
    """Reads the JSON bodies of requests, under bounds on bytes and on what they stand for."""

    def __init__(self, max_bytes: int, max_values: int, workers: Workers) -> None:
        self._max_bytes, self._max_values, self._workers = max_bytes, max_values, workers

    async def read(self, request: Request) -> Body:
        """The body as a JSON object; `Malformed` when it is none, `TooLarge` or `UnsupportedEncoding`."""
        media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
        if media_type != "application/json":
            raise Malformed("Unsupported Media Type: Only 'application/json' is allowed")
        encoding = check_encoding(request.headers.get("content-encoding", ""))
        data = await request.body()
        if not encoding and len(data) <= LARGE_BODY:
            return Body(parse_object(data, self._max_values), large=False)
        return await self._workers.run(partial(self._parsed, data, encoding))

    async def validated(self, body: Body, check: Callable[[], T]) -> T:
        """What `check` makes of the body, without holding up others."""
        return await self._workers.run(lambda _: check()) if body.large else check()

    def _parsed(self, data: bytes, encoding: str, _: Wanted) -> Body:
        if encoding:
            data = unpacked(data, encoding, self._max_bytes)
        return Body(parse_object(data, self._max_values), large=len(data) > LARGE_BODY)


def parse_object(data: bytes, max_values: int) -> dict[str, Any]:
    """Decode strict JSON: UTF-8, no NaN or Infinity, bounds on depth and number of values, an object outermost."""
    check_bounds(data, max_values)
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise Malformed(f"The body is nested more than {MAX_DEPTH} levels deep.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed("The body must be a JSON object.")
    return value


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """`openapi_extra` of a route that reads its body itself; `with_bodies` adds the schema it refers to."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def with_bodies(openapi: dict[str, Any], models: Sequence[type[BaseModel]]) -> dict[str, Any]:
    """The OpenAPI document with the schemas of these bodies."""
    inputs = [(model, "validation") for model in models]
    _, schemas = models_json_schema(inputs, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    components = openapi.setdefault("components", {}).setdefault("schemas", {})
    for name, schema in schemas["$defs"].items():
        components.setdefault(name, schema)
    return openapi

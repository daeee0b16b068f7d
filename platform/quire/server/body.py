"""Reading a JSON body: strict about form, silent about meaning.

FastAPI's own reading takes NaN, lone surrogates and any depth; routes here read the body themselves so
that gates can look at it before it is validated. It knows no schema.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from quire.server.errors import Malformed

MAX_DEPTH = 100

_LONG_NUMBER = re.compile(rb"[0-9]{19}")


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object; `Malformed` when it is none."""
    media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media_type != "application/json":
        raise Malformed("Unsupported Media Type: Only 'application/json' is allowed")
    return parse_object(await request.body())


def parse_object(data: bytes) -> dict[str, Any]:
    """Decode strict JSON: UTF-8, no NaN or Infinity, bounded depth, an object outermost."""
    try:
        value = msgspec.json.decode(data)
    except RecursionError:
        raise Malformed(f"The body is nested more than {MAX_DEPTH} levels deep.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Malformed(f"The body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Malformed("The body must be a JSON object.")
    _check_depth(value)
    if _LONG_NUMBER.search(data):
        _check_integers(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return
    raise Malformed(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _check_integers(value: Any) -> None:
    """Refuse integers of more than 64 bits, which nothing behind the server could carry."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_integers(item)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Malformed("The body has an integer of more than 64 bits.")


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

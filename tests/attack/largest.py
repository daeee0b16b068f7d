"""The largest request for each field of each route: within its schema and the server's settings, and beyond."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from bases import RECORDING, Route, openapi, resolved, routes
from demos import form

MAX_CHARS, MAX_VALUES, MAX_BODY = 4 << 20, 1 << 19, 32 << 20
"""Defaults of --max-text-chars, --max-json-values and --max-body-bytes."""

MAX_CONTAINERS = MAX_VALUES // 16


@dataclass(frozen=True)
class Case:
    """A request: what it is called, where it goes, and what makes its body and content type when it is its turn."""

    name: str
    path: str
    make: Callable[[], tuple[bytes, str]]


def of_json(name: str, path: str, body: Callable[[], Any]) -> Case:
    """A case whose body is JSON; bytes are sent as they are."""

    def make() -> tuple[bytes, str]:
        made = body()
        return made if isinstance(made, bytes) else json.dumps(made).encode(), "application/json"

    return Case(name, path, make)


def largest_of_every_route(url: str) -> Iterator[Case]:
    """A case for each field that can be large, of all routes in the server's description."""
    spec = openapi(url)
    for route in routes(spec):
        for name, schema in route.fields.items():
            if name == "file":
                continue
            for label, make in largest(spec, schema):
                yield _case(route, name, label, make)


def _case(route: Route, field: str, label: str, make: Callable[[], Any]) -> Case:
    name = f"{route.path} {field}: {label}"
    if not route.is_form:
        return of_json(name, route.path, lambda: {**_without(route.base, field), field: make()})

    def body() -> tuple[bytes, str]:
        value = make()
        text = value if isinstance(value, str) else json.dumps(value)
        return form(RECORDING, **{**{key: str(one) for key, one in route.base.items()}, field: text})

    return Case(name, route.path, body)


ALTERNATIVES = ({"prompt", "messages"}, {"input", "messages"}, {"prompt", "text", "prompt_token_ids", "input_ids"})
ALTERNATIVES += ({"texts", "inputs"}, {"text_1", "queries", "data_1"}, {"text_2", "documents", "items", "data_2"})


def _without(base: dict[str, Any], field: str) -> dict[str, Any]:
    """The base without fields that stand for the same as `field`."""
    same = next((names for names in ALTERNATIVES if field in names), set())
    return {name: value for name, value in base.items() if name not in same}


def largest(spec: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Labels and makers of the largest values of a schema."""
    schema = resolved(spec, schema)
    for option in schema.get("anyOf", ()):
        yield from largest(spec, option)
    if "enum" in schema or "const" in schema:
        return
    kind = schema.get("type")
    if kind == "integer" and not isinstance(schema.get("maximum"), int):
        yield "2^62", lambda: 1 << 62
    elif kind == "integer" and schema["maximum"] > 1:
        yield "the maximum", lambda: schema["maximum"]
    elif kind == "string":
        yield from _texts(schema)
    elif kind == "array":
        yield from _lists(spec, schema)
    elif kind == "object":
        yield from _objects(spec, schema)


def _texts(schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    most = schema.get("maxLength", MAX_CHARS)
    yield f"{most} characters", lambda: ("ab " * (most // 3 + 1))[:most]
    if "maxLength" not in schema:
        yield f"{most} characters beyond ASCII", lambda: "é" * most
        yield "31 MB", lambda: "x" * (31 << 20)


def _lists(spec: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    most = schema.get("maxItems", 1 << 30)
    for item in smallest(spec, schema.get("items", {})):
        nested = isinstance(item, dict | list)
        count = min(most, MAX_CONTAINERS // 4 if nested else MAX_VALUES - 100)
        yield f"{count} × {json.dumps(item)[:30]}", lambda item=item, count=count: [item] * count
        if isinstance(item, str) and most > 8:
            yield "8 × 500000 characters", lambda: ["ab " * 166_667] * 8


def _objects(spec: dict[str, Any], schema: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    if schema.get("properties"):
        for name, part in schema["properties"].items():
            base = {key: value for key, value in next(smallest(spec, schema)).items() if key != name}
            if part.get("type") != "object":  # references to themselves end here
                for label, make in largest(spec, part):
                    yield f"{name}: {label}", lambda make=make, name=name, base=base: {**base, name: make()}
    else:
        count = min(schema.get("maxProperties", 1 << 30), MAX_CONTAINERS - 100)
        yield f"{count} members", lambda: {str(number): number % 3 for number in range(count)}
        yield "95 levels", lambda: _deep(95)


def _deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def smallest(spec: dict[str, Any], schema: dict[str, Any]) -> Iterator[Any]:
    """A small value of each kind that a schema allows, null left out."""
    schema = resolved(spec, schema)
    if schema.get("anyOf"):
        for option in schema["anyOf"]:
            yield from smallest(spec, option)
        return
    if "enum" in schema or "const" in schema:
        yield schema["enum"][0] if "enum" in schema else schema["const"]
        return
    kind = schema.get("type")
    if kind == "object" or schema.get("properties"):
        wanted = schema.get("required", ())
        yield {name: next(smallest(spec, schema["properties"][name]), "x") for name in wanted}
    elif kind == "array":
        yield [next(smallest(spec, schema.get("items", {})), 1)]
    elif kind in ("integer", "number"):
        yield max(1, schema.get("minimum", 1))
    elif kind != "null":
        yield True if kind == "boolean" else "x"

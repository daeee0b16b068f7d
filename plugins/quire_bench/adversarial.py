"""Adversarial constraints for `bench structured`: large, deep, ambiguous, exponential or invalid; all different."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from quire.params.structured import StructuredSpec

Json = dict[str, Any]


def adversarial_batch(start: int, count: int) -> list[StructuredSpec]:
    """Returns the constraints with these numbers, cycling through the kinds."""
    return [_SORTS[number % len(_SORTS)](number) for number in range(start, start + count)]


def _schema(value: Json | str) -> StructuredSpec:
    return StructuredSpec(kind="json_schema", source=value if isinstance(value, str) else json.dumps(value))


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": sorted(properties), "additionalProperties": False}


def _union(n: int) -> StructuredSpec:
    texts = ({"type": "string", "minLength": i % 7, "maxLength": 60 + i} for i in range(300))
    members = [
        _object({f"a{n}_{i}": text, f"b{i}": {"type": "integer", "minimum": i}, "kind": {"const": f"k{i}"}})
        for i, text in enumerate(texts)
    ]
    return _schema({"anyOf": members})


def _patterns(n: int) -> StructuredSpec:
    names = ((i, f"property_{n}_{i}") for i in range(1500))
    return _schema(_object({name: {"type": "string", "pattern": f"^[a-z]{{1,{i % 60 + 9}}}x?$"} for i, name in names}))


def _deep(n: int) -> StructuredSpec:
    schema: Json = {"type": "string", "maxLength": n + 5}
    for i in range(28):
        schema = _object({f"p{i}": schema, f"q{i}_{n}": {"type": "number", "minimum": n, "maximum": n + i + 1}})
    return _schema(schema)


def _recursive(n: int) -> StructuredSpec:
    def definition(i: int) -> Json:
        return {"type": "object", "properties": {f"x{n}_{j}": {"$ref": f"#/$defs/n{3 * i + j}"} for j in range(8)}}

    return _schema({"$ref": "#/$defs/n0", "$defs": {f"n{i}": definition(i % 60) for i in range(190)}})


def _enum(n: int) -> StructuredSpec:
    return _schema({"enum": [f"value-{n}-{7919 * i % 100_003}" for i in range(8000)]})


def _constant(n: int) -> StructuredSpec:
    return _schema({"const": f"{n}" + " lorem ipsum dolor" * 12_000})


def _repeated(n: int) -> StructuredSpec:
    return _schema(
        {"type": "array", "minItems": 8000, "items": {"type": "array", "minItems": n, "items": {"const": n}}}
    )


def _product(n: int) -> StructuredSpec:
    both = ({f"p{i}": {"type": "string", "pattern": pattern % (i % 12)} for i in range(40)} for pattern in _MIXED)
    return _schema({"allOf": [{"type": "object", "properties": {**each, f"q{n}": {}}} for each in both]})


def _too_deep(n: int) -> StructuredSpec:
    return _schema('{"items":' * 4000 + str(n) + "}" * 4000)


def _no_json(n: int) -> StructuredSpec:
    return _schema("[" * (50_000 + n))


def _of(kind: str, source: str) -> Callable[[int], StructuredSpec]:
    return lambda n: StructuredSpec(kind=kind, source=source.replace("N", str(n)))


_MIXED = ("^(a|b)*c(a|b){%d}$", "^[a-z]*x[a-z]{%d}$")
_SORTS: tuple[Callable[[int], StructuredSpec], ...] = (
    _union,
    _patterns,
    _deep,
    _recursive,
    _enum,
    _constant,
    _repeated,
    _product,
    _too_deep,
    _no_json,
    _of("regex", "(a|b)*aN(a|b){400}"),
    _of("regex", r"\w{1,900}N\d\w{1,900}"),
    _of("regex", "([a-z]{1,20}[0-9]?){1,100}N"),
    _of("regex", "(((aN){1,9}){1,9}){1,9}"),
    _of("regex", "|".join(f"{i}.*N" for i in range(400))),
    _of("regex", "((N?a?)*)*" * 200),
    _of("grammar", 'start: x\nx: x x x | "a" | "b" x | "N"'),
    _of("grammar", "start: nothingN"),
    _of("choice", json.dumps([f"N {'word ' * (i % 40)}{i}" for i in range(1500)])),
    _of("structural_tag", '{"structures":[{"begin":"N","schema":{},"end":""}],"triggers":["x"]}'),
)

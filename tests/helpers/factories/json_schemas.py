"""JSON schemas to try: made by hand, one for each thing that a schema can say, and drawn at random.

All are small enough that a model which says anything at all comes to an end.
"""

import random
from typing import Any

Schema = dict[str, Any]


def obj(required: bool = True, more: Any = False, /, **properties: Any) -> Schema:
    names = list(properties) if required else []
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": more}


NAME = {"type": "string", "minLength": 1, "maxLength": 6}
COUNT = {"type": "integer", "minimum": 0, "maximum": 30}
SOME = {"type": "string", "maxLength": 4}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {"node": obj(value=COUNT, left={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]}), "leaf": COUNT},
}

REFUSED: dict[str, Schema] = {
    "`uniqueItems`": {"type": "array", "items": COUNT, "uniqueItems": True},
    "`not`": {"not": {"type": "string"}},
    "`if`": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "`dependentRequired`": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "`propertyNames`": {"type": "object", "propertyNames": {"pattern": "^a"}},
    "`contains`": {"type": "array", "contains": {"type": "integer"}},
    "`unevaluatedProperties`": {"type": "object", "unevaluatedProperties": False},
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "string", "minLength": 2}]},
    "Properties": {"type": "object", "properties": {"a": COUNT}, "maxProperties": 3},
    "format": {"type": "string", "format": "iri-reference-template"},
    "Unsatisfiable": {"type": "integer", "minimum": 3, "maximum": 2},
}
"""Schemas that no back end can enforce, by a word of the error message."""

BY_HAND: list[Schema] = [
    obj(name=NAME, age=COUNT),
    obj(False, name=NAME, age=COUNT),
    obj(True, {"type": "boolean"}, name=NAME) | {"maxProperties": 3},
    obj(False, name=NAME, age=COUNT) | {"maxProperties": 2},
    obj(name=NAME, age=COUNT) | {"minProperties": 2, "maxProperties": 5},
    obj(a=obj(b=obj(c=obj(d={"type": "boolean"})))),
    {"enum": ["red", "green", "ä", "日本", "🙂", 'quo"te', "back\\slash", "new\nline"]},
    {"enum": [1, 2.5, -3, None, True, [1, "x"], {"a": 1}]},
    {"const": {"deep": [1, {"er": None}]}},
    {"const": "naïve ☃"},
    {"type": "null"},
    {"type": "boolean"},
    {"type": ["string", "null"], "maxLength": 5},
    {"type": ["integer", "boolean"], "minimum": 3, "maximum": 9},
    COUNT,
    {"type": "integer", "minimum": -5, "maximum": 5},
    {"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 13},
    {"type": "integer", "minimum": 100, "maximum": 1000, "multipleOf": 7},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -1.5, "exclusiveMaximum": 2.25},
    {"type": "number", "minimum": 1000, "maximum": 1e6},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "maxLength": 0},
    {"type": "string", "pattern": "^[a-c]{2}[0-9]?$"},
    {"type": "string", "pattern": "^(foo|bar)(-(foo|bar)){0,2}$"},
    {"type": "string", "pattern": "^[éèê]{1,3}$"},
    *({"type": "string", "format": name} for name in ("date", "time", "date-time", "duration", "email", "hostname")),
    *({"type": "string", "format": name} for name in ("ipv4", "ipv6", "uuid", "uri")),
    {"type": "array", "items": COUNT, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": NAME, "maxItems": 0},
    {"type": "array", "items": obj(x=COUNT), "minItems": 2, "maxItems": 2},
    {"type": "array", "prefixItems": [NAME, COUNT], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [NAME, COUNT], "items": {"type": "boolean"}, "minItems": 1, "maxItems": 4},
    {"anyOf": [NAME, COUNT, {"type": "null"}]},
    {"anyOf": [obj(kind={"const": "a"}, x=COUNT), obj(kind={"const": "b"}, y=NAME)]},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "boolean"}]},
    {"oneOf": [obj(kind={"const": "a"}, x=COUNT), obj(kind={"const": "b"}, y=NAME)]},
    {"allOf": [{"type": "object", "properties": {"a": COUNT}, "required": ["a"]}, obj(False, a={}, b=NAME)]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 6}]},
    {"$ref": "#/$defs/point", "$defs": {"point": obj(x=COUNT, y=COUNT)}},
    {"$ref": "#/$defs/größe 日本", "$defs": {"größe 日本": obj(x=COUNT)}},
    TREE,
    obj(list={"type": "array", "items": {"$ref": "#/definitions/item"}, "maxItems": 2})
    | {"definitions": {"item": NAME}},
    {"type": "object", "additionalProperties": COUNT, "maxProperties": 2},
    {
        "type": "object",
        "patternProperties": {"^s_[a-z]{1,2}$": NAME},
        "additionalProperties": False,
        "maxProperties": 2,
    },
    {
        "type": "object",
        "properties": {"größe": COUNT, 'a"b': COUNT},
        "required": ["größe", 'a"b'],
        "additionalProperties": False,
    },
    obj(title={"type": "string", "maxLength": 3, "title": "A title", "description": "…", "default": "x"}),
    obj(type={"const": "type"}, properties=COUNT, items=NAME, required={"type": "boolean"}),
    {"type": "string", "enum": ["a", "b", 3]},
    {
        "type": "object",
        "properties": {"a": COUNT},
        "required": ["a", "b"],
        "additionalProperties": {"type": "null"},
        "maxProperties": 2,
    },
]


def drawn(seed: int) -> Schema:
    """A schema drawn at random."""
    rng = random.Random(seed)
    return _any(rng, rng.choice([1, 2, 2, 3]))


def _any(rng: random.Random, depth: int) -> Schema:
    leaves = (_string, _integer, _number, _words, _plain)
    inner = (_object, _object, _array, _tuple, _union)
    return rng.choice(inner if depth and rng.random() < 0.75 else leaves)(rng, depth - 1)


def _string(rng: random.Random, depth: int) -> Schema:
    least = rng.randrange(4)
    return rng.choice(
        [
            {"type": "string", "minLength": least, "maxLength": least + rng.randrange(5)},
            {"type": "string", "pattern": rng.choice(["^[a-z]{1,4}$", "^\\d{2,3}$", "^(x|yz)?[0-9]$", "^[^a-z]{2}$"])},
            {"type": "string", "format": rng.choice(["date", "time", "ipv4", "uuid"])},
        ]
    )


def _integer(rng: random.Random, depth: int) -> Schema:
    low = rng.randrange(-200, 200)
    return {"type": "integer", rng.choice(["minimum", "exclusiveMinimum"]): low, "maximum": low + rng.randrange(2, 500)}


def _number(rng: random.Random, depth: int) -> Schema:
    low = round(rng.uniform(-20, 20), rng.randrange(3))
    return {"type": "number", "minimum": low, rng.choice(["maximum", "exclusiveMaximum"]): low + rng.randrange(1, 90)}


def _words(rng: random.Random, depth: int) -> Schema:
    return {"enum": rng.sample(["yes", "no", "Ünïcode", "🙂", "a b", '"', 7, None, False, 1.5], rng.randrange(1, 5))}


def _plain(rng: random.Random, depth: int) -> Schema:
    return {"type": rng.choice(["boolean", "null"])}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(["id", "name", "größe", "a-b", "x y", "tags", "日", "next"], rng.randrange(1, 4))
    required = [name for name in names if rng.random() < 0.7]
    schema = {"type": "object", "properties": {name: _any(rng, depth) for name in names}, "required": required}
    if rng.random() < 0.2:
        more = {"additionalProperties": _plain(rng, 0), "maxProperties": len(names) + 1}
        return {**schema, "required": names, **more}
    return {**schema, "additionalProperties": False}


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randrange(3)
    return {"type": "array", "items": _any(rng, depth), "minItems": least, "maxItems": least + rng.randrange(3)}


def _tuple(rng: random.Random, depth: int) -> Schema:
    parts = [_any(rng, depth) for _ in range(rng.randrange(1, 4))]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}


def _union(rng: random.Random, depth: int) -> Schema:
    if rng.random() < 0.3:
        return {"$ref": "#/$defs/it", "$defs": {"it": _string(rng, 0)}} if depth < 0 else {"anyOf": [_plain(rng, 0)]}
    return {"anyOf": [_any(rng, depth) for _ in range(rng.randrange(1, 4))]}

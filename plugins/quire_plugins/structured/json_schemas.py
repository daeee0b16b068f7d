"""JSON schemas for grammar back ends: parsing, size limits, and an audit of keywords.

A back end lists the keywords that it enforces. A schema with any other keyword that constrains JSON is rejected, never
ignored. Known formats are rewritten as patterns, which all back ends support.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from typing import Any

from quire.errors import BadRequest, UnsupportedConstraint
from quire.params.structured import PARAM, StructuredSpec

Schema = dict[str, Any]

MAX_DEPTH = 64
"""Maximum nesting of a schema."""
MAX_LENGTH = 8192
"""Largest number of characters, items or properties that a schema may use as a limit."""
MAX_INDENT = 32
"""Maximum number of spaces at the beginning of a line of JSON."""
MAX_TABS = 8
"""Maximum number of tabs at the beginning of a line of JSON."""
WHITESPACE = rf" |\n(?: {{0,{MAX_INDENT}}}|\t{{0,{MAX_TABS}}})"
"""Regex of the whitespace between two tokens of JSON, where any is allowed: one space, or a line break with
indentation.

It is bounded, because a small model that may write unlimited whitespace does so.
"""

ONE = (
    "additionalProperties",
    "additionalItems",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Keywords whose value is a schema."""
LIST_KEYWORDS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
"""Keywords whose value is a list of schemas."""
NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
"""Keywords whose value maps names to schemas."""
LENGTHS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")

CONSTRAINTS = frozenset(
    (
        *("$dynamicRef", "$recursiveRef", "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const"),
        *("contains", "dependencies", "dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum"),
        *(
            "exclusiveMinimum",
            "format",
            "if",
            "items",
            "maxContains",
            "maxItems",
            "maxLength",
            "maxProperties",
            "maximum",
        ),
        *("minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern"),
        *("patternProperties", "prefixItems", "properties", "propertyNames", "required", "then", "type"),
        *("unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
    )
)
"""Keywords that constrain JSON. All others are annotations."""

_YEAR, _TIME = (
    "[0-9]{4}",
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
)
_DATE = (
    f"{_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
).replace("[0-9]{4}", "[12][0-9]{3}")
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = f"{_LABEL}(\\.{_LABEL}){{0,3}}"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}D(T[0-9]{1,4}H)?|T[0-9]{1,4}(H[0-9]{1,4}M([0-9]{1,4}S)?|M|S)|[0-9]{1,4}(W|Y|M))",
    "email": f"[A-Za-z0-9_+-]{{1,30}}(\\.[A-Za-z0-9_+-]{{1,30}}){{0,2}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": f"{_BYTE}(\\.{_BYTE}){{3}}",
    "ipv6": "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "uri": "[a-z][a-z0-9+.-]{0,9}://[A-Za-z0-9.-]{1,64}(:[0-9]{1,4})?(/[A-Za-z0-9._~-]{0,64}){0,8}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}
"""A pattern for each format. Every text that matches has the format; some texts with the format do not match."""


def read(asked: StructuredSpec) -> Schema:
    """Returns the schema of a constraint of the kind json_schema or json_object, with formats as patterns.

    Raises BadRequest for invalid schemas and UnsupportedConstraint for schemas that are too large or have an unknown
    format.
    """
    if asked.kind == "json_object":
        return {"type": "object"}
    try:
        value = json.loads(asked.source)
    except RecursionError:
        raise UnsupportedConstraint(f"a schema may nest {MAX_DEPTH} levels deep, this one does more.") from None
    except ValueError as error:
        raise BadRequest(f"The JSON schema is not JSON: {error}.", PARAM) from error
    if value is True:
        value = {}
    if not isinstance(value, dict):
        raise BadRequest(f"A JSON schema is an object, got {value!r:.40}.", PARAM)
    _check_depth(value)
    for schema in schemas(value):
        _settle(schema, asked)
    return value


def _check_depth(value: Any) -> None:
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return
    raise UnsupportedConstraint(f"a schema may nest {MAX_DEPTH} levels deep, this one does more.")


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def schemas(root: Schema) -> Iterator[Schema]:
    """Yields a schema and all schemas inside it."""
    waiting: list[Any] = [root]
    while waiting:
        schema = waiting.pop()
        if not isinstance(schema, dict):
            continue
        yield schema
        waiting += [schema[name] for name in ONE if name in schema]
        waiting += [each for name in LIST_KEYWORDS for each in _list(schema.get(name))]
        waiting += [each for name in NAMED for each in _map(schema.get(name)).values()]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _settle(schema: Schema, asked: StructuredSpec) -> None:
    """Checks the size of one schema and adds patterns for its format and the options of the request."""
    schema.pop("x-guidance", None)  # settings of a library, which clients may not set
    for name in LENGTHS:
        bound = schema.get(name, 0)
        if isinstance(bound, int | float) and bound > MAX_LENGTH:
            raise UnsupportedConstraint(f"`{name}` may be {MAX_LENGTH} at most, got {bound}.")
    if not asked.additional_properties and isinstance(schema.get("properties"), dict):
        schema.setdefault("additionalProperties", False)
    _drop_idle_counts(schema)
    form = schema.get("format")
    alone = schema.get("type") == "string" and not (schema.keys() & CONSTRAINTS) - {"type", "format"}
    if alone and isinstance(form, str) and form in FORMATS:
        del schema["format"]
        schema["pattern"] = f"^(?:{FORMATS[form]})$"


def _drop_idle_counts(schema: Schema) -> None:
    """Removes limits on the number of properties that always hold; most libraries support them only for maps."""
    names, required = schema.get("properties"), schema.get("required")
    least, most = schema.get("minProperties"), schema.get("maxProperties")
    if isinstance(least, int) and isinstance(required, list) and len(set(map(str, required))) >= least:
        del schema["minProperties"]
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    if isinstance(most, int) and closed and isinstance(names, dict) and len(names) <= most:
        del schema["maxProperties"]


PACKAGES = {"lmformatenforcer": "lm-format-enforcer"}
"""Package to install for a module, if the names differ."""


def check_installed(package: str) -> None:
    """Raises UnsupportedConstraint if the library of a back end is not installed."""
    if find_spec(package) is None:
        raise UnsupportedConstraint(
            f"the package {package} is not installed: pip install {PACKAGES.get(package, package)}"
        )


def texts(asked: StructuredSpec) -> list[str]:
    """The texts of a constraint of the kind choice. Raises BadRequest."""
    try:
        found = json.loads(asked.source)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"`choice` is not JSON: {error}.", PARAM) from error
    if not isinstance(found, list) or not found or not all(isinstance(text, str) and text for text in found):
        raise BadRequest("`choice` must be a non-empty list of non-empty strings.", PARAM)
    return found


def check_simple(root: Schema) -> None:
    """Raises UnsupportedConstraint where keywords interact that simple back ends treat one by one."""
    for schema in schemas(root):
        said = schema.keys() & CONSTRAINTS
        for name in ("$ref", "anyOf", "enum", "const"):
            if name in said and said - {name, "type"} | (said & {"type"} if name in ("$ref", "anyOf") else set()):
                raise UnsupportedConstraint(f"it does not enforce other keywords beside `{name}`.")
        missing = set(schema.get("required", ())) - _map(schema.get("properties")).keys()
        if missing:
            raise UnsupportedConstraint(
                f"it does not enforce `required` of {min(missing)!r:.40}, which `properties` lacks."
            )
        if not said & {"type", "$ref", "anyOf", "enum", "const"} and said:
            raise UnsupportedConstraint("it does not enforce keywords of a schema without a `type`.")
        if isinstance(schema.get("type"), list) and said - {"type"}:
            raise UnsupportedConstraint("it does not enforce keywords beside several types.")
        if not str(schema.get("$ref", "#/$defs/")).startswith(("#/$defs/", "#/definitions/")):
            raise UnsupportedConstraint("it follows a `$ref` into `$defs` only.")
        for name in ("enum", "const"):
            if name in said and "type" in said:
                _check_typed(schema, name)


def _check_typed(schema: Schema, name: str) -> None:
    kinds = {"string": str, "boolean": bool, "integer": int, "null": type(None)}
    kind = kinds.get(str(schema["type"]))
    values = schema["enum"] if name == "enum" else [schema["const"]]
    if kind is None or not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise UnsupportedConstraint(f"it does not enforce `type` beside `{name}`.")


def check_keywords(root: Schema, known: Collection[str]) -> None:
    """Raises UnsupportedConstraint for a keyword that constrains JSON and is not in `known`."""
    for schema in schemas(root):
        for name in schema:
            if name in CONSTRAINTS and name not in known:
                raise UnsupportedConstraint(f"it does not enforce `{name}`.")

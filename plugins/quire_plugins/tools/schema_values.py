"""Converts values that a model wrote without quotes to the types of the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None, "none": None}


def schema_of(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The schema of a tool's parameters; empty if the tool or the schema does not exist."""
    for tool in tools:
        function = tool.get("function") or {}
        if function.get("name") == name:
            return function.get("parameters") or {}
    return {}


def typed(text: str, name: str, schema: Mapping[str, Any]) -> Any:
    """The value of parameter `name` in `text`; a string where the schema allows it or no other type matches."""
    properties = schema.get("properties")
    wanted = properties.get(name) if isinstance(properties, Mapping) else None
    kinds = _kinds(wanted, schema) if isinstance(wanted, Mapping) else frozenset({"string"})
    word = text.strip().lower()
    if "null" in kinds and word in ("null", "none"):
        return None
    if "string" in kinds:
        return text
    if word in _WORDS:
        return _WORDS[word]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _kinds(wanted: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Names of the types that a schema allows; empty if it has none."""
    if depth > 8:
        return frozenset()
    kind = wanted.get("type")
    if isinstance(kind, str):
        return frozenset({kind})
    if isinstance(kind, list):
        return frozenset(str(one) for one in kind)
    if isinstance(wanted.get("$ref"), str):
        return _kinds(_target(wanted["$ref"], root), root, depth + 1)
    values = wanted.get("enum") or ([wanted["const"]] if "const" in wanted else None)
    if isinstance(values, list):
        return frozenset("string" if isinstance(one, str) else "null" if one is None else "other" for one in values)
    found: frozenset[str] = frozenset()
    for key in ("anyOf", "oneOf", "allOf"):
        for one in wanted.get(key) or ():
            found |= _kinds(one, root, depth + 1) if isinstance(one, Mapping) else frozenset()
    return found


def _target(reference: str, root: Mapping[str, Any]) -> Mapping[str, Any]:
    at: Any = root
    for step in reference.removeprefix("#/").split("/"):
        at = at.get(step) if isinstance(at, Mapping) else None
    return at if isinstance(at, Mapping) else {}

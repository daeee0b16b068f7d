"""Limits on the text that a constraint forces: where it is long, llguidance must not compute forced tokens.

llguidance follows a forced text to its end at once, however often arrays and calls repeat it. A schema of a few
kilobytes that repeats a long text would fill the memory.
"""

from __future__ import annotations

import json
import re
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from quire_plugins.structured.json_schemas import NAMED, Schema, schemas
from quire_plugins.structured.structural_tags import Format, children

LONGEST = 256
"""Largest number of characters that one part of a constraint may force, since arrays may repeat the part."""


def is_short(text: Any) -> bool:
    """Whether a text is short enough to be repeated."""
    return not isinstance(text, str) or len(text) <= LONGEST


def all_short(root: Schema) -> bool:
    """Whether no part of a schema forces a long text."""
    return all(_names_short(schema) and _values_short(schema) for schema in schemas(root))


def format_short(one: Format) -> bool:
    """Whether no part of a structural tag's format forces a long text."""
    ends = one.get("end")
    texts = [one.get("value"), one.get("begin"), one.get("separator"), *(ends if isinstance(ends, list) else [ends])]
    schema = one.get("json_schema")
    return (
        all(map(is_short, texts))
        and (not isinstance(schema, dict) or all_short(schema))
        and _least(one.get("pattern")) <= LONGEST
        and all(map(format_short, children(one)))
    )


def _names_short(schema: Schema) -> bool:
    named = (schema.get(keyword) for keyword in NAMED)
    return all(is_short(name) for names in named if isinstance(names, dict) for name in names)


def _values_short(schema: Schema) -> bool:
    options = schema.get("enum")
    values = [schema["const"]] if "const" in schema else []
    values += options if isinstance(options, list) else []
    return all(len(json.dumps(value)) <= LONGEST for value in values) and _least(schema.get("pattern")) <= LONGEST


def _least(pattern: Any) -> int:
    """Length of the shortest text that a pattern matches; a large number if Python cannot parse the pattern."""
    if not isinstance(pattern, str):
        return 0
    try:
        return int(parser.parse(pattern).getwidth()[0])
    except (re.error, OverflowError, RecursionError):
        return LONGEST + 1

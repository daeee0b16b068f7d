"""Grammars in llguidance's dialect of Lark: converted from EBNF, and generated for text with JSON parts such as tool
calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from quire.errors import BadRequest
from quire.params.structured import PARAM, StructuredSpec
from quire_plugins.structured.json_schemas import Schema, read, schemas
from quire_plugins.structured.jump_forward_limits import format_short, is_short
from quire_plugins.structured.structural_lark import Writer, free_until, words
from quire_plugins.structured.structural_tags import (
    Format,
    blaming,
    content_of,
    object_of,
    older_format,
    read_format,
    tags_of,
)

MAX_CALLS = 256
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|.)", re.DOTALL)
_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)


def settings(forcing: bool) -> str:
    """The line that turns the library's forced tokens on or off."""
    return f"%llguidance {json.dumps({} if forcing else {'no_forcing': True})}"


def as_lark(source: str) -> str:
    """Returns a grammar in Lark. The source is Lark or EBNF (`root ::= …`, the form of xgrammar and llama.cpp)."""
    if not _RULE.search(source):
        return source
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(_ESCAPE.sub(_as_lark_escapes, source))
    except BadRequest:
        raise
    except Exception as error:  # the converter raises many types
        raise BadRequest(f"The EBNF grammar is wrong: {error}.", PARAM) from error


def _as_lark_escapes(escape: re.Match[str]) -> str:
    """Rewrites an escape of EBNF; the converter leaves numeric escapes unchanged."""
    digits = escape[1] or escape[2] or escape[3]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise BadRequest(f"The EBNF grammar is wrong: {escape[0]} is no character.", PARAM)
    return chr(code) if code > 127 else f"\\x{code:02x}"


def calls(asked: StructuredSpec, style: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """Rules for a number of tagged values and nothing else (the kind `calls` of `StructuredSpec`)."""
    asking = object_of(asked)
    tags = tags_of(asking.get("tags"))
    least, most = asking.get("at_least", 1), asking.get("at_most")
    if not _is_count(least, 0) or not (most is None or _is_count(most, max(1, least))):
        raise BadRequest(
            f"`at_least` and `at_most` must be counts up to {MAX_CALLS}, got {least!r} and {most!r}.", PARAM
        )
    separator = words(asking.get("separator") or "", special)
    lines = [f"tag_{i}: {_tag(tag, asked, style, special)}" for i, tag in enumerate(tags)]
    lines.append(f"call: {' | '.join(f'tag_{i}' for i in range(len(tags)))}")
    more = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
    start = f"call ({separator} call){more}" if most != 1 else "call"
    start = f"{_around('first', asking, special)} {start} {_around('last', asking, special)}"
    start = start if least else f"({start})?"
    if asking.get("lead") is not None:
        start = f"lead? {start}"
        lines += _lead(asking["lead"], special)
    parts = [asking.get(name) for name in ("separator", "first", "last")]
    forcing = all(map(is_short, parts)) and all(format_short(older_format(tag)) for tag in tags)
    return "\n".join([settings(forcing), f"start: {start}", *lines])


def _lead(value: Any, special: Mapping[str, int]) -> list[str]:
    """Rules for an optional delimited text at the beginning."""
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("begin", "end")):
        raise BadRequest("`lead` has `begin` and `end`, which are texts.", PARAM)
    if not value["begin"] or not value["end"]:
        raise BadRequest("`begin` and `end` of `lead` must not be empty.", PARAM)
    return [*free_until("lead_text", value["end"], special), f"lead: {words(value['begin'], special)} lead_text"]


def _around(name: str, asking: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """Rules for the text before and after all calls."""
    text = asking.get(name) or ""
    if not isinstance(text, str):
        raise BadRequest(f"`{name}` must be a text, got {text!r:.40}.", PARAM)
    return words(text, special)


def structural_tags(asked: StructuredSpec, style: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """Rules for free text with structural tags, or for any other format."""
    root = read_format(asked)
    rules = Writer(special, lambda content: _value(content, asked, style)).whole(root)
    return f"{settings(format_short(root))}\n{rules}"


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_CALLS


def _tag(tag: Mapping[str, Any], asked: StructuredSpec, style: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """A tag: begin, a JSON value, end."""
    value = _value(content_of(tag), asked, style)
    return f"{words(tag['begin'], special)} {value} {words(tag.get('end', ''), special)}"


def _value(content: Format, asked: StructuredSpec, style: Mapping[str, Any]) -> str:
    """Rule of a JSON value."""
    with blaming(content):
        schema = with_uri_references(read(of_content(content, asked)))
        return f"%json {json.dumps({**schema, 'x-guidance': {**style, **_separators(content)}})}"


def of_content(content: Format, asked: StructuredSpec) -> StructuredSpec:
    """The value of a tag as a constraint of its own."""
    source = json.dumps(content["json_schema"])
    return StructuredSpec(kind="json_schema", source=source, additional_properties=asked.additional_properties)


def with_uri_references(root: Schema) -> Schema:
    """Returns the schema with every `$ref` as a URI reference, in which most characters are percent-encoded."""
    for schema in schemas(root):
        if isinstance(schema.get("$ref"), str):
            schema["$ref"] = quote(schema["$ref"], safe="#/%~:?&=+@!$'()*,;")
    return root


def _separators(content: Format) -> dict[str, Any]:
    """JSON separators of a tag, if it sets them. Raises BadRequest."""
    given = content.get("separators")
    if given is None:
        return {}
    two = isinstance(given, list) and [text.strip() if isinstance(text, str) else text for text in given]
    if two != [",", ":"]:
        raise BadRequest(f"`separators` are a comma and a colon, maybe with spaces; got {given!r:.80}.", PARAM)
    comma, colon = given
    return {"whitespace_flexible": False, "whitespace_pattern": None, "item_separator": comma, "key_separator": colon}

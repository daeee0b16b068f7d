"""Structural tags for grammar back ends: parsing, size limits, and conversion of the older form to xgrammar's `format`.

Formats nest: constant texts, JSON, regexes and free text, combined by sequences, alternatives, repeats and tags.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from quire.errors import BadRequest, UnsupportedConstraint
from quire.params.structured import PARAM, StructuredSpec
from quire_plugins.structured.json_schemas import MAX_DEPTH

Format: TypeAlias = dict[str, Any]

MAX_TAGS = 512
"""Maximum number of tags of a constraint, such as the tools of a request; in a structural tag also of formats."""
MAX_FORMATS = 4 * MAX_TAGS

LISTED = {"sequence": "elements", "or": "elements", "triggered_tags": "tags", "tags_with_separator": "tags"}
"""The field with the inner formats, by type."""
ABOUT = ("separators", "owner", "param")
"""Options of a JSON value in `StructuredSpec` besides its schema."""
OLDER = {"calls": "tags", "structural_tag": "structures"}
"""Kinds of constraints with tags in the older form, and the name of their field."""
HOLDING = ("tag", "optional", "plus", "star", "repeat")
"""Types whose `content` is a format."""
OTHERS = (
    *("token", "exclude_token", "any_tokens", "token_triggered_tags", "dispatch", "token_dispatch"),
    *("qwen_xml_parameter", "grammar"),
)
"""Types whose fields xgrammar checks, because no other back end supports them."""


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, str) and each for each in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_begin(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and value.get("type") == "token")


def _is_end(value: Any) -> bool:
    return _is_begin(value) or (isinstance(value, list) and bool(value) and all(map(_is_text, value)))


FIELDS: Mapping[str, Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "const_string": {"value": (_is_text, "a text")},
    "json_schema": {"json_schema": (lambda value: isinstance(value, dict | bool), "a schema")},
    "regex": {"pattern": (_is_text, "a text")},
    "any_text": {},
    "sequence": {},
    "or": {},
    "tag": {"begin": (_is_begin, "a text"), "end": (_is_end, "a text or several")},
    "triggered_tags": {"triggers": (_are_texts, "a non-empty list of non-empty strings")},
    "tags_with_separator": {"separator": (_is_text, "a text")},
    "optional": {},
    "plus": {},
    "star": {},
    "repeat": {"min": (_is_count, "a count"), "max": (_is_count, "a count")},
}
"""Types of the fields (other than formats), by type of format."""


def object_of(asked: StructuredSpec) -> dict[str, Any]:
    """Parses a source as a JSON object. Raises BadRequest."""
    try:
        value = json.loads(asked.source)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"A constraint of kind {asked.kind} is a JSON object: {error}.", PARAM) from error
    if not isinstance(value, dict):
        raise BadRequest(f"A constraint of kind {asked.kind} is a JSON object, got {value!r:.40}.", PARAM)
    return value


def tags_of(value: Any) -> list[dict[str, Any]]:
    """Tags in the older form: begin, schema, end. Raises BadRequest."""
    if not isinstance(value, list) or not 0 < len(value) <= MAX_TAGS:
        raise BadRequest(f"A structural tag has 1 to {MAX_TAGS} structures.", PARAM)
    for tag in value:
        texts = isinstance(tag, dict) and all(isinstance(tag.get(name, ""), str) for name in ("begin", "end"))
        if not texts or "begin" not in tag:
            raise BadRequest("A structure has `begin`, `schema` and `end`; the first and the last are texts.", PARAM)
    return value


def read_format(asked: StructuredSpec) -> Format:
    """Parses the format of a structural tag. Raises BadRequest, or UnsupportedConstraint if it is too large."""
    asking = object_of(asked)
    found = asking["format"] if "format" in asking else _of_older(asking)
    _check(found)
    return found


def _of_older(asking: Mapping[str, Any]) -> Format:
    tags = [older_format(tag) for tag in tags_of(asking.get("structures"))]
    return {"type": "triggered_tags", "triggers": asking.get("triggers"), "tags": tags}


def older_tags(asked: StructuredSpec) -> list[dict[str, Any]]:
    """The tags in the older form of a constraint; empty if it has none."""
    name = OLDER.get(asked.kind)
    asking = {} if name is None else object_of(asked)
    return tags_of(asking[name]) if name in asking else []


def older_format(tag: Mapping[str, Any]) -> Format:
    """Converts a tag from the older form to a format."""
    return {"type": "tag", "begin": tag["begin"], "content": content_of(tag), "end": tag.get("end", "")}


def content_of(tag: Mapping[str, Any]) -> Format:
    """The JSON between begin and end of a tag in the older form, with its options and the name of its tool."""
    said = {"owner": f"the structure {tag['begin']!r:.80}", **{name: tag[name] for name in ABOUT if name in tag}}
    return {"type": "json_schema", "json_schema": _schema_of(tag.get("schema")), **said}


@contextmanager
def blaming(content: Format) -> Iterator[None]:
    """Adds the name of the tool to a BadRequest about the schema of a tag."""
    try:
        yield
    except BadRequest as error:
        if "owner" not in content:
            raise
        raise type(error)(f"{content['owner']}: {error.message}", content.get("param")) from error


def _schema_of(value: Any) -> Any:
    """The schema of a tag; in the older form it may be a string."""
    if not isinstance(value, str):
        return {"type": "object"} if value is None else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"`schema` of a structure is not JSON: {error}.", PARAM) from error


def _check(root: Any) -> None:
    level, count = [root], 0
    for _ in range(MAX_DEPTH):
        for each in level:
            _check_one(each)
        count += len(level)
        if count > MAX_FORMATS:
            raise UnsupportedConstraint(f"a structural tag may have {MAX_FORMATS} formats, this one has more.")
        level = [child for each in level for child in children(each)]
        if not level:
            return
    raise UnsupportedConstraint(f"formats may nest {MAX_DEPTH} levels deep, these do more.")


def children(one: Format) -> Iterator[Any]:
    """The formats inside a format."""
    if one["type"] in LISTED:
        yield from one[LISTED[one["type"]]]
    elif one["type"] in HOLDING:
        yield one["content"]


def _check_one(one: Any) -> None:
    kind = one.get("type") if isinstance(one, dict) else None
    if kind in OTHERS:
        return
    if not isinstance(kind, str) or kind not in FIELDS:
        known = ", ".join((*FIELDS, *OTHERS))
        raise BadRequest(f"The `type` of a format is one of {known}; got {kind or one!r:.80}.", PARAM)
    for name, (right, what) in FIELDS[kind].items():
        if not right(one.get(name)):
            raise BadRequest(f"`{name}` of a format of type {kind} must be {what}, got {one.get(name)!r:.80}.", PARAM)
    if kind in HOLDING and "content" not in one:
        raise BadRequest(f"A format of type {kind} has a format as `content`.", PARAM)
    if kind in LISTED:
        _check_list(one, kind, LISTED[kind])


def _check_list(one: Format, kind: str, name: str) -> None:
    value = one.get(name)
    if not isinstance(value, list) or not value:
        raise BadRequest(f"`{name}` of a format of type {kind} must be a non-empty list of formats.", PARAM)
    if name == "tags":
        for each in value:
            if not isinstance(each, dict) or each.get("type", "tag") != "tag":
                raise BadRequest(f"`tags` of a format of type {kind} must be formats of type tag.", PARAM)
            each["type"] = "tag"
    if kind == "triggered_tags":
        for each in value:
            begin = each.get("begin")
            if not isinstance(begin, str) or not begin.startswith(tuple(one["triggers"])):
                raise BadRequest(f"No trigger begins the structure {begin!r:.80}.", PARAM)

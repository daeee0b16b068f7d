"""Grammars in llguidance's dialect of Lark: from EBNF, and for texts with parts in JSON, such as tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from quire.errors import BadRequest, CannotConstrain
from quire.structured import PARAM, Structured
from quire_plugins.forced_texts import all_short, is_short
from quire_plugins.json_schemas import read

MAX_TAGS = 512
"""Tags of a constraint, such as the tools of a request."""
MAX_CALLS = 256
_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_TRIGGERED = "(.|\\n)*"


def settings(forcing: bool) -> str:
    """The line that says whether the library looks for texts that are forced."""
    return f"%llguidance {json.dumps({} if forcing else {'no_forcing': True})}"


def as_lark(source: str) -> str:
    """A grammar in Lark or in EBNF (`root ::= …`, as xgrammar and llama.cpp have it), in Lark."""
    if not _RULE.search(source):
        return source
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(source)
    except Exception as error:  # the converter raises whatever comes
        raise BadRequest(f"The EBNF grammar is wrong: {error}.", PARAM) from error


def calls(asked: Structured, style: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """So many tagged values and nothing else; see `Structured`."""
    asking = _object(asked)
    tags = _tags(asking.get("tags"))
    least, most = asking.get("at_least", 1), asking.get("at_most")
    if not _is_count(least, 0) or not (most is None or _is_count(most, max(1, least))):
        raise BadRequest(
            f"`at_least` and `at_most` must be counts up to {MAX_CALLS}, got {least!r} and {most!r}.", PARAM
        )
    separator = _words(asking.get("separator") or "", special)
    lines = [f"tag_{i}: {_tag(tag, asked, style, special)}" for i, tag in enumerate(tags)]
    lines.append(f"call: {' | '.join(f'tag_{i}' for i in range(len(tags)))}")
    more = f"{{{max(0, least - 1)},{'' if most is None else most - 1}}}"
    start = f"call ({separator} call){more}" if most != 1 else "call"
    start = f"{_around('first', asking, special)} {start} {_around('last', asking, special)}"
    forcing = _short(tags) and all(is_short(asking.get(name)) for name in ("separator", "first", "last"))
    return "\n".join([settings(forcing), f"start: {start if least else f'({start})?'}", *lines])


def _around(name: str, asking: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """What stands before all calls, or after them."""
    text = asking.get(name) or ""
    if not isinstance(text, str):
        raise BadRequest(f"`{name}` must be a text, got {text!r:.40}.", PARAM)
    return _words(text, special)


def structural_tags(asked: Structured, style: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """Free text in which what begins as a tag does goes on and ends as the tag does."""
    asking = _object(asked)
    if "format" in asking:
        raise CannotConstrain("it takes structural tags as `structures` and `triggers`, not as `format`.")
    tags = _tags(asking.get("structures"))
    triggers = asking.get("triggers")
    if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
        raise BadRequest("`triggers` must be a non-empty list of non-empty strings.", PARAM)
    lines = [
        settings(_short(tags)),
        f"start: ({' | '.join(f'part_{i}' for i in range(len(tags)))})* rest",
        "rest: TEXT",
    ]
    lines.append(f"TEXT: /{_TRIGGERED}/")
    for i, tag in enumerate(tags):
        trigger = next((t for t in triggers if tag["begin"].startswith(t)), None)
        if trigger is None:
            raise BadRequest(f"No trigger begins the structure {tag['begin']!r:.80}.", PARAM)
        left = {**tag, "begin": tag["begin"][len(trigger) :]}
        body = _tag(left, asked, style, special)
        if trigger in special:
            lines.append(f"part_{i}: TEXT {_words(trigger, special)} {body}")
        else:
            lines += [f"head_{i}[lazy]: TEXT {literal(trigger)}", f"part_{i}: head_{i} {body}"]
    return "\n".join(lines)


def _object(asked: Structured) -> dict[str, Any]:
    try:
        value = json.loads(asked.source)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"A constraint of kind {asked.kind} is a JSON object: {error}.", PARAM) from error
    if not isinstance(value, dict):
        raise BadRequest(f"A constraint of kind {asked.kind} is a JSON object, got {value!r:.40}.", PARAM)
    return value


def _tags(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_TAGS:
        raise BadRequest(f"A structural tag has 1 to {MAX_TAGS} structures.", PARAM)
    for tag in value:
        texts = isinstance(tag, dict) and all(isinstance(tag.get(name, ""), str) for name in ("begin", "end"))
        if not texts or "begin" not in tag:
            raise BadRequest("A structure has `begin`, `schema` and `end`; the first and the last are texts.", PARAM)
    return value


def _short(tags: list[dict[str, Any]]) -> bool:
    """Whether none of them forces a long text."""
    return all(
        is_short(tag["begin"])
        and is_short(tag.get("end"))
        and (not isinstance(tag.get("schema"), dict) or all_short(tag["schema"]))
        for tag in tags
    )


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_CALLS


def _tag(tag: Mapping[str, Any], asked: Structured, style: Mapping[str, Any], special: Mapping[str, int]) -> str:
    """begin, a JSON value, end."""
    schema = tag.get("schema")
    source = json.dumps({"type": "object"} if schema is None else schema)
    one = Structured(kind="json_schema", source=source, additional_properties=asked.additional_properties)
    value = json.dumps({**read(one), "x-guidance": style})
    return f"{_words(tag['begin'], special)} %json {value} {_words(tag.get('end', ''), special)}"


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def _words(text: str, special: Mapping[str, int]) -> str:
    """A text as Lark's literals; special tokens in it as the tokens they are."""
    if not text:
        return ""
    names = sorted(special, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    return " ".join(f"<[{special[part]}]>" if part in special else literal(part) for part in parts if part)

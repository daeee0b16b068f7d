"""Tool calls in JSON, which most families use between their own delimiters."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolCallFormat

HEAD = re.compile(
    r'[\s\[,;}\]]*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"((?:[^"\\]|\\.)+)"\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""Text before the arguments of a call in the usual spelling: alone, in a list, or after other calls."""

_decoder = json.JSONDecoder()


def list_format(start: str) -> Callable[[str, str], ToolCallFormat]:
    """The `call_format` of objects in a list after `start`; it is the same for all chat templates."""

    def frame(name: str, template: str) -> ToolCallFormat:
        del template
        before = f'{{"name": {json.dumps(name)}, "arguments": '
        return ToolCallFormat(before=before, after="}", first=f"{start}[", last="]", separator=", ")

    return frame


def parse_call(value: Any) -> ToolCall:
    """Returns the call of an object with a name and arguments (or parameters). Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("a call is an object")
    inner = value.get("function")
    if isinstance(inner, dict):
        value = inner
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("a call has a name")
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str) and arguments:  # some models write the object as a string
        arguments = json.loads(arguments)
    if arguments in (None, ""):
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("arguments are an object")
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def parse_calls(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """Parses one call or a list of calls. Raises ValueError."""
    del tools  # this format does not need the tools of the request
    return _calls_of(json.loads(text))


def parse_first(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """Parses calls of formats without a closing delimiter; text after the value is ignored."""
    del tools
    value, _ = _decoder.raw_decode(text.lstrip())
    return _calls_of(value)


def _calls_of(value: Any) -> list[ToolCall]:
    if value == []:
        raise ValueError("a list of no calls")
    return [parse_call(one) for one in value] if isinstance(value, list) else [parse_call(value)]


def parse_series(text: str, separator: str) -> list[ToolCall]:
    """Parses calls in sequence, separated by `separator` or whitespace. Raises ValueError.

    Both keys of a call are required, because nothing else distinguishes a call from other JSON.
    """
    calls: list[ToolCall] = []
    at = _skip(text, 0, separator)
    while at < len(text):
        value, at = _decoder.raw_decode(text, at)
        if not isinstance(value, dict) or not value.keys() & {"arguments", "parameters", "function"}:
            raise ValueError("a call has arguments")
        calls.append(parse_call(value))
        at = _skip(text, at, separator)
    return calls


def _skip(text: str, at: int, separator: str) -> int:
    while at < len(text) and (text[at].isspace() or text[at] in separator):
        at += 1
    return at


def json_object_at(text: str, at: int) -> tuple[str, int]:
    """Returns the text of the JSON object at `at` (leading spaces skipped) and its end. Raises ValueError."""
    at = _skip(text, at, "")
    value, end = _decoder.raw_decode(text, at)
    if not isinstance(value, dict):
        raise ValueError("arguments are an object")
    return text[at:end], end

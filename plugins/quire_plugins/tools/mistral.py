"""The formats of Mistral: older tokenizers use a list, those from version 11 on a special token and a name per call.

    [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]
    [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[ARGS]{}

An id may follow the name: f[CALL_ID]123456789[ARGS]{…}.
"""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolCallFormat, ToolParser
from quire_plugins.tools.json_calls import HEAD, json_object_at, list_format, parse_first

START, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
ID_LENGTH = 9
"""Templates reject ids of any other length."""

NAMED = re.compile(r"(?:\s*\[TOOL_CALLS\])?\s*([\w.-]+)\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
ANY_HEAD = re.compile(f"{NAMED.pattern}|{HEAD.pattern}")


def parse(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Parses calls of both formats. Raises ValueError."""
    if text.lstrip().startswith(("[{", "{", "[ {", "[\n")):
        return parse_first(text, tools)
    calls: list[ToolCall] = []
    at = 0
    while found := NAMED.match(text, at):
        arguments, at = json_object_at(text, found.end())
        calls.append(ToolCall(found[1], arguments))
    if not calls:
        raise ValueError("a call is a name and an object")
    return calls


def call_id() -> str:
    """Nine letters and digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LENGTH))


def frame(name: str, template: str) -> ToolCallFormat:
    """The format that the template uses for earlier calls."""
    if ARGS in template:
        return ToolCallFormat(before=f"{START}{name}{ARGS}", after="")
    return list_format(START)(name, template)


def parsers() -> Iterable[ToolParser]:
    """All published models of Mistral AI."""
    yield ToolParser(
        "mistral",
        START,
        "",
        parse,
        lambda template: START in template,
        call_prefix=ANY_HEAD,
        call_format=frame,
        special_tokens=(ARGS, CALL_ID),
        call_id=call_id,
    )

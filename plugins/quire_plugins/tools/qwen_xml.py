"""The format of Qwen3-Coder: tags for the function and each parameter, whose types the tool's schema tells.

<tool_call>
<function=f>
<parameter=a>
1
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolParser
from quire_plugins.tools.schema_values import schema_of, typed

START, END, FUNCTION = "<tool_call>", "</tool_call>", "<function="
_FUNCTION = re.compile(r"<function=([^>\s]{1,256})>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]{1,256})>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)


def parse(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Parses all functions of the span. Raises ValueError if there is none."""
    calls = []
    for function in _FUNCTION.finditer(text):
        schema = schema_of(function[1], tools)
        values = {found[1]: typed(_trimmed(found[2]), found[1], schema) for found in _PARAMETER.finditer(function[2])}
        calls.append(ToolCall(function[1], json.dumps(values, ensure_ascii=False)))
    if not calls:
        raise ValueError("a call names a function")
    return calls


def _trimmed(value: str) -> str:
    """Removes the line breaks that belong to the tags."""
    return value.removeprefix("\n").removesuffix("\n")


def opens(text: str) -> bool | None:
    """Whether the answer begins with a function: the model sometimes omits the outer tag."""
    text = text.lstrip()
    if text.startswith(FUNCTION):
        return True
    return None if FUNCTION.startswith(text) else False


def matches(template: str) -> bool:
    """Whether a template asks for calls in this format."""
    return START in template and FUNCTION in template


def parsers() -> Iterable[ToolParser]:
    """One format under two names."""
    yield ToolParser("qwen3_coder", START, END, parse, matches, starts_call=opens)
    yield ToolParser("qwen3_xml", START, END, parse, lambda template: False, starts_call=opens)

"""Quire's own format of tool calls, a JSON list, for models whose format is unknown or is not JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolCallFormat, ToolParser

_HEAD = re.compile(r'[\s\[,}\]]*\{"name": "([^"\\]+)", "arguments": ')


def frame(name: str, template: str = "") -> ToolCallFormat:
    """The text around the arguments of a call, which is an object of the list."""
    del template
    before = f'{{"name": {json.dumps(name)}, "arguments": '
    return ToolCallFormat(before=before, after="}", first="[", last="]", separator=", ")


def parse(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> list[ToolCall]:
    """The calls of a JSON list. Raises ValueError for other text."""
    del tools
    calls = []
    for call in json.loads(text):
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise ValueError("a call is an object with a name")
        calls.append(ToolCall(call["name"], json.dumps(call.get("arguments", {}), ensure_ascii=False)))
    return calls


JSON_CALLS = ToolParser("json", "", "", parse, lambda template: False, call_prefix=_HEAD, call_format=frame)
"""The parser of this format: the whole output is the list."""

"""Formats in which models write tool calls. Each knows two delimiters and what stands between them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.hookspecs import hookimpl
from quire.records import ToolCall, ToolParser


def parse_json(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """One call written as {"name": …, "arguments": {…}}."""
    del tools  # the format needs no help from the tools on offer
    call = json.loads(text)
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise ValueError("a call is an object with a name")
    return [ToolCall(call["name"], json.dumps(call.get("arguments") or {}, ensure_ascii=False))]


@hookimpl
def quire_tool_parsers() -> Iterable[ToolParser]:
    """The format of the Hermes models, which Qwen and many others adopted."""
    yield ToolParser("hermes", "<tool_call>", "</tool_call>", parse_json, lambda template: "<tool_call>" in template)

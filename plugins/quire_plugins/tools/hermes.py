"""The format of the Hermes models, also used by Qwen 2.5, Qwen 3, Granite 4 and many others.

<tool_call>
{"name": "f", "arguments": {"a": 1}}
</tool_call>
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from quire.records import ToolCallFormat, ToolParser
from quire_plugins.tools.json_calls import HEAD, parse_calls

START, END = "<tool_call>", "</tool_call>"
OTHERS = ("<function=", "<arg_key>", "minimax:tool_call", "<|tool_call|>")
"""Text of templates whose models write another format between the same delimiters."""


def matches(template: str) -> bool:
    """Whether a template asks for calls in this format."""
    return START in template and not any(mark in template for mark in OTHERS)


def frame(name: str, template: str) -> ToolCallFormat:
    """Format of a call, and the line break between calls."""
    del template
    before = f'{START}\n{{"name": {json.dumps(name)}, "arguments": '
    return ToolCallFormat(before=before, after=f"}}\n{END}", separator="\n")


def parsers() -> Iterable[ToolParser]:
    """One format under several names; only the first is detected automatically."""
    yield ToolParser("hermes", START, END, parse_calls, matches, call_prefix=HEAD, call_format=frame)
    for name in ("qwen3_json", "granite4"):
        yield ToolParser(name, START, END, parse_calls, lambda template: False, call_prefix=HEAD, call_format=frame)

"""The format of Llama 3: the answer is an object, or several separated by semicolons.

    {"name": "f", "parameters": {"a": 1}}

The special token <|python_tag|> may come first. Text after it that is not JSON is code and stays content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolCallFormat, ToolParser
from quire_plugins.tools.json_calls import HEAD, parse_series

START = "<|python_tag|>"
BEGINNINGS = tuple(f'{{"{key}"' for key in ("name", "type", "function", "parameters", "arguments"))


def parse(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Parses all calls. Raises ValueError if any text is not a call."""
    del tools
    calls = parse_series(text.replace(START, ""), ";")
    if not calls:
        raise ValueError("there is no call")
    return calls


def opens(text: str) -> bool | None:
    """Whether the answer begins with an object whose first key is a key of calls."""
    dense = "".join(text.split())
    if any(dense.startswith(beginning) for beginning in BEGINNINGS):
        return True
    return None if any(beginning.startswith(dense) for beginning in BEGINNINGS) else False


def frame(name: str, template: str) -> ToolCallFormat:
    """Format of an object; the answer begins with the first one."""
    del template
    return ToolCallFormat(before=f'{{"name": {json.dumps(name)}, "parameters": ', after="}", separator="; ")


def matches(template: str) -> bool:
    """Llama 3.1 to 3.3, whose templates describe the format in words."""
    return "<|start_header_id|>" in template and '"parameters": dictionary' in template


def parsers() -> Iterable[ToolParser]:
    """Llama 3.1 to 3.3, and Llama 4 if its template asks for JSON."""
    yield ToolParser("llama3_json", START, "", parse, matches, starts_call=opens, call_prefix=HEAD, call_format=frame)
    yield ToolParser(
        "llama4_json", START, "", parse, lambda template: False, starts_call=opens, call_prefix=HEAD, call_format=frame
    )

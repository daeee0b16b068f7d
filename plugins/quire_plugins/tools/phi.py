"""The format of Phi-4-mini: a word and a list of calls, up to the end of the answer.

functools[{"name": "f", "arguments": {"a": 1}}]
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from quire.records import ToolCallFormat, ToolParser
from quire_plugins.tools.json_calls import HEAD, parse_first

START = "functools"


def frame(name: str, template: str) -> ToolCallFormat:
    """Format of an object of the list."""
    del template
    before = f'{{"name": {json.dumps(name)}, "arguments": '
    return ToolCallFormat(before=before, after="}", first=f"{START}[", last="]", separator=", ")


def parsers() -> Iterable[ToolParser]:
    """Phi-4-mini, whose templates put tools between its own special tokens."""
    yield ToolParser(
        "phi4_mini_json",
        START,
        "",
        parse_first,
        lambda template: "<|/tool|>" in template,
        call_prefix=HEAD,
        call_format=frame,
    )

"""The format of Phi-4-mini: a word and a list of calls, up to the end of the answer.

functools[{"name": "f", "arguments": {"a": 1}}]
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.records import ToolParser
from quire_plugins.tools.json_calls import HEAD, list_format, parse_first

START = "functools"


def parsers() -> Iterable[ToolParser]:
    """Phi-4-mini, whose templates put tools between its own special tokens."""
    yield ToolParser(
        "phi4_mini_json",
        START,
        "",
        parse_first,
        lambda template: "<|/tool|>" in template,
        call_prefix=HEAD,
        call_format=list_format(START),
    )

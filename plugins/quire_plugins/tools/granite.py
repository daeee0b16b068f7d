"""The format of Granite 3: a list of calls after a special token, up to the end of the answer.

<|tool_call|>[{"name": "f", "arguments": {"a": 1}}]
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.records import ToolParser
from quire_plugins.tools.json_calls import HEAD, list_format, parse_first

START = "<|tool_call|>"


def parsers() -> Iterable[ToolParser]:
    """Granite 3.0 to 3.3; Granite 4 uses the format of Hermes."""
    yield ToolParser(
        "granite",
        START,
        "",
        parse_first,
        lambda template: START in template,
        call_prefix=HEAD,
        call_format=list_format(START),
    )

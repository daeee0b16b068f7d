"""Tool calls of gpt-oss: messages to functions.

    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

The recipient may come before the channel, the type of the arguments may be missing, and calls may be on the channel of
the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolCallFormat, ToolParser
from quire_plugins.reasoning.harmony import AGAIN, CALL, CHANNEL, CHANNELS, CONSTRAIN, MESSAGE, RECIPIENT, matches
from quire_plugins.tools.json_calls import json_object_at

FUNCTIONS = "functions."
HEAD = re.compile(rf"[^{{]*?\bto=functions\.([\w.-]+)[^{{]*?{re.escape(MESSAGE)}\s*(?=\{{)")


def parse(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Parses the call of one message. Raises ValueError if the recipient is not a function."""
    header, _, body = text.partition(MESSAGE)
    to = RECIPIENT.search(header)
    if to is None:
        raise ValueError("a call has a recipient")
    name = to[1].removeprefix(FUNCTIONS)
    offered = {tool.get("function", {}).get("name") for tool in tools}
    if not to[1].startswith(FUNCTIONS) and name not in offered:
        raise ValueError("the recipient is no function")
    if not body.strip():
        return [ToolCall(name, "{}")]
    arguments, end = json_object_at(body, 0)
    if body[end:].strip():
        raise ValueError("something follows the arguments")
    return [ToolCall(name, arguments)]


def frame(name: str, template: str) -> ToolCallFormat:
    """Format of a message; messages after the first start with another prefix."""
    del template
    before = f"{CHANNEL}commentary to={FUNCTIONS}{name} {CONSTRAIN}json{MESSAGE}"
    return ToolCallFormat(before=before, after="", separator=f"{CALL}{AGAIN}")


def parsers() -> Iterable[ToolParser]:
    """The parser under vLLM's name."""
    yield ToolParser("openai", "", "", parse, matches, call_prefix=HEAD, call_format=frame, channels=CHANNELS)

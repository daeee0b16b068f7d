"""The calls of gpt-oss: messages to functions.

<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

The recipient may stand before the channel, the type of the arguments may be missing, and calls may come on the channel
of the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.records import CallFrame, ToolCall, ToolParser
from quire_plugins.harmony import AGAIN, CALL, CHANNEL, CHANNELS, CONSTRAIN, MESSAGE, RECIPIENT, matches
from quire_plugins.tools.json_calls import object_at

FUNCTIONS = "functions."
HEAD = re.compile(rf"[^{{]*?\bto=functions\.([\w.-]+)[^{{]*?{re.escape(MESSAGE)}\s*(?=\{{)")


def parse(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """The call that one message is. Raises ValueError where it is to somebody else than a function."""
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
    arguments, end = object_at(body, 0)
    if body[end:].strip():
        raise ValueError("something follows the arguments")
    return [ToolCall(name, arguments)]


def frame(name: str, template: str) -> CallFrame:
    """A message; the one after it begins as all but the first do."""
    del template
    before = f"{CHANNEL}commentary to={FUNCTIONS}{name} {CONSTRAIN}json{MESSAGE}"
    return CallFrame(before=before, after="", between=f"{CALL}{AGAIN}")


def parsers() -> Iterable[ToolParser]:
    """By the name that users of vLLM know."""
    yield ToolParser("openai", "", "", parse, matches, head=HEAD, frame=frame, channels=CHANNELS)

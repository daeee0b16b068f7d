"""Formats in which a model writes tool calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.records.reasoning import Channels


@dataclass(frozen=True)
class ToolCall:
    """One tool call of a model; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class ToolCallFormat:
    """The text around the JSON arguments of a required call: `before` and `after`.

    first, last: the text around all calls of an answer. separator: the text between two calls. item_separator,
    key_separator: the JSON of the arguments has these between items and after keys, as the model was trained, and no
    other whitespace.
    """

    before: str
    after: str
    first: str = ""
    last: str = ""
    separator: str = ""
    item_separator: str = ", "
    key_separator: str = ": "


@dataclass(frozen=True)
class ToolParser:
    """Calls are written between `start` and `end`. Quire does the streaming; `parse` reads one span.

    parse(text between the delimiters, offered tools) -> calls; raises ValueError if the text is no call.
    matches(chat template): whether a model with this template writes the format.

    With an empty `end`, calls extend to the end of the answer. With an empty `start`, the format has no delimiters:
    `starts_call` says whether an answer that begins with a text consists of calls (None: too early to say).

    call_prefix: matches the text before a call's JSON arguments in a span, from the beginning of the span or the end of
    the previous call; the one group that matches is the name. With it arguments are streamed while they are written.
    call_format(tool name, chat template) -> how to write a call of that tool, if its arguments are JSON; None: Quire
    uses its own format. special_tokens: further special tokens of the format, which must stay in the text. call_id:
    makes ids of calls, if the model's template accepts no others. channels: the answer is a series of messages, and
    each call is a message with its header; `start` and `end` are empty then.
    """

    name: str
    start: str
    end: str
    parse: Callable[[str, Sequence[Mapping[str, Any]]], list[ToolCall]]
    matches: Callable[[str], bool]
    starts_call: Callable[[str], bool | None] | None = None
    call_prefix: re.Pattern[str] | None = None
    call_format: Callable[[str, str], ToolCallFormat] | None = None
    special_tokens: tuple[str, ...] = ()
    call_id: Callable[[], str] | None = None
    channels: Channels | None = None

"""How a model writes calls of tools."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quire.records.channels import Channels


@dataclass(frozen=True)
class ToolCall:
    """One call that a model made; `arguments` is JSON text."""

    name: str
    arguments: str


@dataclass(frozen=True, kw_only=True)
class CallFrame:
    """What stands around the JSON of a call's arguments where a call is demanded: `before` and `after`.

    first, last: around all calls of an answer. between: stands between two calls. comma, colon: stand in the JSON of
    the arguments between values and after keys, as the model learnt them; it has no other white space.
    """

    before: str
    after: str
    first: str = ""
    last: str = ""
    between: str = ""
    comma: str = ", "
    colon: str = ": "


@dataclass(frozen=True)
class ToolParser:
    """Calls stand between `start` and `end` in the text; the host streams, `parse` reads one span.

    parse(text between the delimiters, tools offered) -> calls; raises ValueError if it is none.
    matches(chat template) says whether a model with this template writes this format.

    An empty `end`: calls last to the end of the answer. An empty `start`: the format has none; then `opens` says
    whether an answer that begins with a text consists of calls (None: too early to say), which last to its end.

    head: matches what stands before a call's JSON object of arguments in a span, from the span's begin or the
    end of the call before; its one group that takes part is the name. With it arguments stream while they are written.
    frame(name of a tool, chat template) -> how a call of it is written, if arguments are JSON; None: as the host likes.
    marks: further special tokens of the format, which must stay in the text. call_id makes ids of calls, where the
    model's template accepts no others. channels: the answer is a series of messages, of which those that are calls are
    spans, header and all; `start` and `end` are empty then.
    """

    name: str
    start: str
    end: str
    parse: Callable[[str, Sequence[Mapping[str, Any]]], list[ToolCall]]
    matches: Callable[[str], bool]
    opens: Callable[[str], bool | None] | None = None
    head: re.Pattern[str] | None = None
    frame: Callable[[str, str], CallFrame] | None = None
    marks: tuple[str, ...] = ()
    call_id: Callable[[], str] | None = None
    channels: Channels | None = None

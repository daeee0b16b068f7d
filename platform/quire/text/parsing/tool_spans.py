"""Parses the text between the delimiters of tool calls while it arrives: names and arguments of started calls.

Formats are known only by `ToolParser.head`, a pattern of the text before the arguments.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from quire.records import ToolCall

_OUTSIDE_STRING = re.compile(r'[{}\[\]"\\]')
_IN_STRING = re.compile(r'["\\]')

MAX_HEAD = 4096
"""Maximum characters of a call's head. After more text without a match, calls are parsed when the span ends."""


@dataclass(slots=True)
class JsonScanner:
    """Finds the end of a JSON object or list in text that arrives in parts. Checks only brackets and strings.

    The first text passed to `scan` must begin with the opening bracket.
    """

    depth: int = 0
    in_string: bool = False
    escaped: bool = False
    done: bool = False

    def scan(self, text: str) -> int:
        """The number of characters of `text` that belong to the value: all, unless the value ends in it."""
        at = 0
        while not self.done and at < len(text):
            if self.escaped:
                self.escaped, at = False, at + 1
                continue
            found = (_IN_STRING if self.in_string else _OUTSIDE_STRING).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._update(found[0])
        return at

    def _update(self, char: str) -> None:
        if char == '"':
            self.in_string = not self.in_string
        elif char == "\\":
            self.escaped = self.in_string
        elif char in "{[":
            self.depth += 1
        else:
            self.depth -= 1
            self.done = self.depth <= 0


@dataclass(frozen=True, slots=True)
class CallStarted:
    """Start of a call of the function `name`."""

    name: str


@dataclass
class ToolCallSpan:
    """A span of tool calls: its text, and the calls found in it so far.

    head: pattern of the text before the arguments, None if the format has none.
    """

    head: re.Pattern[str] | None
    calls: list[list[str]] = field(default_factory=list)  # for each call with a head: name, parts of the arguments
    _texts: list[str] = field(default_factory=list)
    _rest: str = ""
    _value: JsonScanner | None = None
    _has_no_heads: bool = False

    @property
    def text(self) -> str:
        """The text of the span so far."""
        return "".join(self._texts)

    @property
    def in_string(self) -> bool:
        """Whether the text so far ends within a string of arguments, in which delimiters have no meaning."""
        return self._value is not None and self._value.in_string

    def push(self, text: str) -> list[CallStarted | str]:
        """Add text; returns the calls that start in it, each followed by the new text of its arguments."""
        self._texts.append(text)
        if self.head is None or self._has_no_heads:
            return []
        self._rest += text
        parts: list[CallStarted | str] = []
        while self._rest:
            if self._value is None and not self._begin(self.head, parts):
                break
            assert self._value is not None
            count = self._value.scan(self._rest)
            arguments, self._rest = self._rest[:count], self._rest[count:]
            parts.append(arguments)
            self.calls[-1].append(arguments)
            if self._value.done:
                self._value = None
        return parts

    def _begin(self, head: re.Pattern[str], parts: list[CallStarted | str]) -> bool:
        found = head.match(self._rest)
        if found is None or not self._rest.startswith("{", found.end()):
            self._has_no_heads = len(self._rest) > MAX_HEAD
            return False
        name = next(group for group in found.groups() if group is not None)
        if "\\" in name:
            name = _unescape(name)
        self._rest = self._rest[found.end() :]
        self._value = JsonScanner()
        self.calls.append([name])
        parts.append(CallStarted(name))
        return True

    def with_written_arguments(self, calls: list[ToolCall]) -> list[ToolCall]:
        """The calls that a parser read in the span, with the arguments exactly as written where they are known."""
        known = [call for call in self.calls if len(call) > 1]
        if self._value is not None or [call[0] for call in known] != [call.name for call in calls[: len(known)]]:
            return calls
        return [*(ToolCall(call[0], "".join(call[1:])) for call in known), *calls[len(known) :]]


def _unescape(name: str) -> str:
    try:
        return str(json.loads(f'"{name}"'))
    except ValueError:
        return name

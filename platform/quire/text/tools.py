"""Tool calls in a model's text, found as it streams.

A `ToolParser` record says which delimiters stand around calls and reads what is between; finding
them in pieces of text is done here, once for all formats. It knows no format and no HTTP.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quire.counting import call_plugin
from quire.errors import ConfigError
from quire.records import Registry, ToolCall, ToolParser
from quire.text.machine import TEXT, Event, Span, State, StopMachine

HOOK = "quire_tool_parsers"
Tools: TypeAlias = Sequence[Mapping[str, Any]]


def new_call_id() -> str:
    """An id for a call, of the form clients know."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """Part of a call. The first of a call has `id` and `name`; all `arguments` of a call in a row are its JSON."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A whole call, for answers that do not stream."""

    id: str
    name: str
    arguments: str


def choose_parser(registry: Registry, name: str | None, template: str | None) -> ToolParser | None:
    """The parser called `name`, or else the one that recognises the chat template; None if none does.

    Raises `ConfigError` for a name nobody has, and when several parsers recognise the template.
    """
    parsers: Mapping[str, ToolParser] = registry.of(HOOK)
    if name is not None:
        if name not in parsers:
            raise ConfigError(
                f"--tool-call-parser {name!r} is not one of {', '.join(sorted(parsers)) or '(none loaded)'}."
            )
        return parsers[name]
    if template is None:
        return None
    matching = [parser for parser in parsers.values() if parser.matches(template)]
    if len(matching) > 1:
        names = ", ".join(parser.name for parser in matching)
        raise ConfigError(
            f"Several tool-call parsers fit the chat template: {names}. Name one with --tool-call-parser."
        )
    return matching[0] if matching else None


class ToolReader:
    """A parser at work for one request: immutable, shared by its completions."""

    def __init__(
        self, parser: ToolParser, tools: Tools, registry: Registry, new_id: Callable[[], str] = new_call_id
    ) -> None:
        self.machine = StopMachine(spans=(Span(parser.name, parser.start, parser.end),))
        self.parser = parser
        self.new_id = new_id
        self._tools = tools
        self._registry = registry
        self._plugin = registry.plugin_of(HOOK, parser.name)

    def parse(self, text: str) -> list[ToolCall]:
        """Calls that `text` holds, none if it is no call; `PluginFailed` if the parser breaks."""
        found: list[ToolCall] = call_plugin(self._registry, self._plugin, self._read, text)
        return found

    def _read(self, text: str) -> list[ToolCall]:
        try:
            return self.parser.parse(text, self._tools)
        except (ValueError, RecursionError):  # a model may write brackets without end
            return []

    def stream(self) -> ToolStream:
        """The reader of one completion."""
        return ToolStream(self)

    def read(self, text: str) -> tuple[str | None, list[CalledTool]]:
        """A whole text: what is no call (None if that is blank and there are calls), and the calls."""
        stream = self.stream()
        parts = [*stream.push(text), *stream.flush()]
        content = "".join(part for part in parts if isinstance(part, str))
        calls: dict[int, CalledTool] = {}
        for part in parts:
            if isinstance(part, ToolDelta) and part.id is not None and part.name is not None:
                calls[part.index] = CalledTool(part.id, part.name, part.arguments)
            elif isinstance(part, ToolDelta):
                first = calls[part.index]
                calls[part.index] = CalledTool(first.id, first.name, first.arguments + part.arguments)
        return (None if calls and not content.strip() else content), list(calls.values())


@dataclass
class ToolStream:
    """Where one completion stands. After the first call, spaces before the next one and at the end are dropped."""

    reader: ToolReader
    num_calls: int = 0
    _state: State = field(init=False)
    _span: list[str] = field(default_factory=list)
    _spaces: str = ""

    def __post_init__(self) -> None:
        self._state = self.reader.machine.start()

    def push(self, text: str) -> list[str | ToolDelta]:
        """Text that is no call, and calls that are complete, in order."""
        step = self.reader.machine.step(self._state, text)
        self._state = step.state
        return self._take(step.events)

    def flush(self) -> list[str | ToolDelta]:
        """The text has ended; a call whose end is missing still counts if it can be read."""
        span = self._state.span
        step = self.reader.machine.flush(self._state)
        parts = self._take(step.events)
        if span is not None:
            parts.extend(self._close(""))
        return parts

    def _take(self, events: Sequence[Event]) -> list[str | ToolDelta]:
        parts: list[str | ToolDelta] = []
        for event in events:
            if event.kind == TEXT:
                parts.extend(self._content(event.text))
            elif event.closed:
                parts.extend(self._close(self.reader.parser.end))
            else:
                self._span.append(event.text)
        return parts

    def _content(self, text: str) -> list[str | ToolDelta]:
        if self.num_calls:
            whole = self._spaces + text
            text = whole.rstrip()
            self._spaces = whole[len(text) :]
        return [text] if text else []

    def _close(self, end: str) -> list[str | ToolDelta]:
        text, self._span = "".join(self._span), []
        calls = self.reader.parse(text)
        if not calls:  # no call after all: the client sees what the model wrote
            return self._content(self.reader.parser.start + text + end)
        self._spaces = ""
        parts: list[str | ToolDelta] = []
        for call in calls:
            parts.append(ToolDelta(self.num_calls, id=self.reader.new_id(), name=call.name))
            parts.append(ToolDelta(self.num_calls, call.arguments))
            self.num_calls += 1
        return parts

"""Tool calls in a model's text, found as it streams.

A `ToolParser` record says what stands around calls and reads what is between; finding them in pieces of
text is done here, once for all formats. It knows no format and no HTTP.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quire.counting import call_plugin
from quire.errors import ConfigError
from quire.records import Registry, ToolCall, ToolParser
from quire.text.machine import overlap
from quire.text.tool_spans import Begun, CallSpan

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
    """A parser at work for one request: immutable, shared by its completions.

    demanded: whether answers consist of calls, so that nothing of one that breaks off is text.
    """

    def __init__(
        self,
        parser: ToolParser,
        tools: Tools,
        registry: Registry,
        new_id: Callable[[], str] | None = None,
        demanded: bool = False,
    ) -> None:
        self.parser = parser
        self.new_id = new_id or parser.call_id or new_call_id
        self.demanded = demanded
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

    def opens(self, text: str) -> bool | None:
        """Whether an answer that begins with `text` consists of calls; None while that cannot be said."""
        if self.parser.opens is None:
            return not (self.parser.start or self.parser.channels)
        verdict: bool | None = call_plugin(self._registry, self._plugin, self.parser.opens, text)
        return verdict

    def stream(self) -> ToolStream:
        """The reader of one completion, which gives arguments while they are written."""
        return ToolStream(self)

    def read(self, text: str, cut: bool = False) -> tuple[str | None, list[CalledTool]]:
        """A whole text: what is no call (None if that is blank and there are calls), and the calls.

        cut: see `ToolStream.flush`.
        """
        stream = self.stream()
        return gather([*stream.push(text), *stream.flush(cut)])


def gather(parts: Sequence[str | ToolDelta]) -> tuple[str | None, list[CalledTool]]:
    """Parts of an answer put together: what is no call (None if that is blank and there are calls), and the calls."""
    content = "".join(part for part in parts if isinstance(part, str))
    calls: dict[int, CalledTool] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, ToolDelta):
            if part.id is not None and part.name is not None:
                calls[part.index] = CalledTool(part.id, part.name, "")
            arguments.setdefault(part.index, []).append(part.arguments)
    made = [CalledTool(call.id, call.name, "".join(arguments[index])) for index, call in calls.items()]
    return (None if made and not content.strip() else content), made


@dataclass
class ToolStream:
    """Where one completion stands. After the first call, spaces before the next one and at the end are dropped.

    A call is given as soon as its head has come, its arguments as they come; where the format has no head, when the
    parser has read it. In whatever pieces the text comes, what is given is the same. What stands between delimiters and
    is no call comes back as text, unless part of it was given already.
    """

    reader: ToolReader
    num_calls: int = 0
    _undecided: bool = True
    _held: str = ""  # text that may be the beginning of a delimiter, or of an answer that is a call
    _span: CallSpan | None = None
    _start: str = ""  # the delimiter that opened the span
    _given: int = 0  # calls of the span that were given
    _spaces: str = field(default="")

    def push(self, text: str) -> list[str | ToolDelta]:
        """Text that is no call, and calls or parts of them, in order."""
        buffer, self._held = self._held + text, ""
        if self._undecided:
            opens = self.reader.opens(buffer)
            if opens is None:
                self._held = buffer
                return []
            self._undecided = False
            if opens:
                self.open("")
        return self._advance(buffer)

    def flush(self, cut: bool = False) -> list[str | ToolDelta]:
        """The text has ended. A call whose end is missing counts as far as it can be read; where that is not even its
        name, nothing of it is text, nor is half a delimiter after a call. cut: the text would have gone on."""
        buffer, self._held = self._held, ""
        if self._span is None:
            return [] if self.reader.demanded or self.num_calls else self._content(buffer)
        certain = bool(self._start) and (cut or bool(self.reader.parser.end))
        return [*self.inside(buffer), *self.break_off(certain)]

    def break_off(self, certain: bool) -> list[str | ToolDelta]:
        """The text has ended inside a span. certain: it is one of calls even if it has none that can be read."""
        parts = self.close("")
        return [part for part in parts if not isinstance(part, str)] if certain or self.reader.demanded else parts

    def _advance(self, buffer: str) -> list[str | ToolDelta]:
        parts: list[str | ToolDelta] = []
        while buffer:
            mark = self._mark()
            at = buffer.find(mark) if mark else -1
            if at < 0:
                held = overlap(buffer, mark) if mark else 0
                self._held = buffer[len(buffer) - held :] if held else ""
                parts += self._take(buffer[: len(buffer) - held])
                break
            parts += self._take(buffer[:at])
            buffer = buffer[at + len(mark) :]
            parts += self._cross(mark)
        return parts

    def _mark(self) -> str:
        """The delimiter that counts here; "" if none does."""
        parser = self.reader.parser
        if self._span is None:
            return parser.start
        return parser.end if self._start else ""

    def _take(self, text: str) -> list[str | ToolDelta]:
        return self._content(text) if self._span is None else self.inside(text)

    def _cross(self, mark: str) -> list[str | ToolDelta]:
        """Pass a delimiter."""
        if self._span is None:
            self.open(mark)
            return []
        if self._span.in_string:
            return self.inside(mark)
        return self.close(mark)

    def open(self, start: str) -> None:
        """A span begins, with this delimiter."""
        self._span, self._start, self._given = CallSpan(self.reader.parser.head), start, 0

    def _content(self, text: str) -> list[str | ToolDelta]:
        if self.num_calls:
            whole = self._spaces + text
            text = whole.rstrip()
            self._spaces = whole[len(text) :]
        return [text] if text else []

    def inside(self, text: str) -> list[str | ToolDelta]:
        """Text of the span."""
        assert self._span is not None
        parts: list[str | ToolDelta] = []
        for part in self._span.push(text):
            if isinstance(part, Begun):
                parts.append(self._begin(part.name))
            else:
                parts.append(ToolDelta(self.num_calls - 1, part))
        return parts

    def _begin(self, name: str) -> ToolDelta:
        self._spaces = ""
        self._given += 1
        self.num_calls += 1
        return ToolDelta(self.num_calls - 1, id=self.reader.new_id(), name=name)

    def close(self, end: str) -> list[str | ToolDelta]:
        """The span has ended, with this delimiter."""
        span, self._span = self._span, None
        assert span is not None
        calls = self.reader.parse(span.text)
        if not calls and not self._given:  # no call after all: the client sees what the model wrote
            return self._content(self._start + span.text + end)
        parts: list[str | ToolDelta] = []
        for call in span.as_written(calls)[self._given :]:
            parts.append(self._begin(call.name))
            parts.append(ToolDelta(self.num_calls - 1, call.arguments))
        return parts

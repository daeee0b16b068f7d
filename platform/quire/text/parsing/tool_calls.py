"""Finds tool calls in the text of a model while it streams.

A `ToolParser` record defines the delimiters of a format and parses the text between them; finding the delimiters in
streamed text is done here for all formats.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from quire.errors import ConfigError
from quire.hooks.call_stats import call_plugin
from quire.records import Registry, ToolCall, ToolParser
from quire.text.parsing.scanner import overlap
from quire.text.parsing.tool_spans import CallStarted, ToolCallSpan

HOOK = "quire_tool_parsers"
Tools: TypeAlias = Sequence[Mapping[str, Any]]


def new_call_id() -> str:
    """A random id for a call, in vLLM's form."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class ToolDelta:
    """Part of a call. The first part has `id` and `name`; the `arguments` of all parts together are the JSON text."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class FinishedCall:
    """A complete call, for responses that do not stream. arguments: JSON text."""

    id: str
    name: str
    arguments: str


def choose_parser(registry: Registry, name: str | None, template: str | None) -> ToolParser | None:
    """The parser called `name`; without a name, the one that recognizes the chat template, or None.

    Raises `ConfigError` for an unknown name, and when several parsers recognize the template.
    """
    parsers: Mapping[str, ToolParser] = registry.by_hook(HOOK)
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


class ToolCallExtractor:
    """Extracts tool calls from the outputs of one request. Immutable; shared by its completions.

    calls_required: outputs consist of calls, so that an incomplete one is never returned as text.
    """

    def __init__(
        self,
        parser: ToolParser,
        tools: Tools,
        registry: Registry,
        new_id: Callable[[], str] | None = None,
        calls_required: bool = False,
    ) -> None:
        self.parser = parser
        self.new_id = new_id or parser.call_id or new_call_id
        self.calls_required = calls_required
        self._tools = tools
        self._registry = registry
        self._plugin = registry.plugin_of(HOOK, parser.name)

    def parse(self, text: str) -> list[ToolCall]:
        """The calls in the text of a span; [] if it is not valid. Raises `PluginFailed` if the parser fails."""
        found: list[ToolCall] = call_plugin(self._registry, self._plugin, self._parse, text)
        return found

    def _parse(self, text: str) -> list[ToolCall]:
        try:
            return self.parser.parse(text, self._tools)
        except (ValueError, RecursionError):  # RecursionError: the model wrote too many nested brackets
            return []

    def opens(self, text: str) -> bool | None:
        """Whether an output that begins with `text` consists of calls; None while that is undecided."""
        if self.parser.starts_call is None:
            return not (self.parser.start or self.parser.channels)
        verdict: bool | None = call_plugin(self._registry, self._plugin, self.parser.starts_call, text)
        return verdict

    def stream(self) -> StreamingToolCalls:
        """A streaming parser for one completion, which returns arguments while they are written."""
        return StreamingToolCalls(self)

    def read(self, text: str, truncated: bool = False) -> tuple[str | None, list[FinishedCall]]:
        """Parse a whole text; returns the content (None if it is blank and there are calls), and the calls.

        truncated: as for `StreamingToolCalls.flush`.
        """
        stream = self.stream()
        return merge_parts([*stream.push(text), *stream.flush(truncated)])


def merge_parts(parts: Sequence[str | ToolDelta]) -> tuple[str | None, list[FinishedCall]]:
    """Merge the parts of an output; returns the content (None if it is blank and there are calls), and the calls."""
    content = "".join(part for part in parts if isinstance(part, str))
    calls: dict[int, FinishedCall] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        if isinstance(part, ToolDelta):
            if part.id is not None and part.name is not None:
                calls[part.index] = FinishedCall(part.id, part.name, "")
            arguments.setdefault(part.index, []).append(part.arguments)
    finished = [FinishedCall(call.id, call.name, "".join(arguments[index])) for index, call in calls.items()]
    return (None if finished and not content.strip() else content), finished


@dataclass
class StreamingToolCalls:
    """Parser state of one completion.

    A call is returned as soon as its head is complete, and its arguments as they arrive; if the format has no head,
    when its span ends. The result does not depend on how the text is divided. Text between delimiters that is not a
    call is returned as text, unless part of it was returned as a call already. After the first call, whitespace before
    the next one and at the end is dropped.
    """

    extractor: ToolCallExtractor
    num_calls: int = 0
    _is_undecided: bool = True
    _held: str = ""  # text that may be the beginning of a delimiter, or of an output that is a call
    _span: ToolCallSpan | None = None
    _start: str = ""  # the delimiter that opened the span
    _num_in_span: int = 0  # calls of the span that were returned
    _spaces: str = field(default="")

    def push(self, text: str) -> list[str | ToolDelta]:
        """Add text; returns text outside of calls, and parts of calls, in order."""
        buffer, self._held = self._held + text, ""
        if self._is_undecided:
            opens = self.extractor.opens(buffer)
            if opens is None:
                self._held = buffer
                return []
            self._is_undecided = False
            if opens:
                self.open("")
        return self._advance(buffer)

    def flush(self, truncated: bool = False) -> list[str | ToolDelta]:
        """End the text. An incomplete call is returned as far as it can be parsed.

        Without even a name it is dropped, as is half a delimiter after a call. truncated: the text ended because of its
        length.
        """
        buffer, self._held = self._held, ""
        if self._span is None:
            return [] if self.extractor.calls_required or self.num_calls else self._content(buffer)
        certain = bool(self._start) and (truncated or bool(self.extractor.parser.end))
        return [*self.inside(buffer), *self.close_unfinished(certain)]

    def close_unfinished(self, certain: bool) -> list[str | ToolDelta]:
        """End the text inside a span. certain: the span is not text even if it has no call that can be parsed."""
        parts = self.close("")
        return (
            [part for part in parts if not isinstance(part, str)] if certain or self.extractor.calls_required else parts
        )

    def _advance(self, buffer: str) -> list[str | ToolDelta]:
        parts: list[str | ToolDelta] = []
        while buffer:
            delimiter = self._delimiter()
            at = buffer.find(delimiter) if delimiter else -1
            if at < 0:
                held = overlap(buffer, delimiter) if delimiter else 0
                self._held = buffer[len(buffer) - held :] if held else ""
                parts += self._on_text(buffer[: len(buffer) - held])
                break
            parts += self._on_text(buffer[:at])
            buffer = buffer[at + len(delimiter) :]
            parts += self._on_delimiter(delimiter)
        return parts

    def _delimiter(self) -> str:
        """The delimiter that has a meaning in the current state; "" if none has."""
        parser = self.extractor.parser
        if self._span is None:
            return parser.start
        return parser.end if self._start else ""

    def _on_text(self, text: str) -> list[str | ToolDelta]:
        return self._content(text) if self._span is None else self.inside(text)

    def _on_delimiter(self, delimiter: str) -> list[str | ToolDelta]:
        """Begin or end a span at a delimiter."""
        if self._span is None:
            self.open(delimiter)
            return []
        if self._span.in_string:
            return self.inside(delimiter)
        return self.close(delimiter)

    def open(self, start: str) -> None:
        """Begin a span after this delimiter."""
        self._span, self._start, self._num_in_span = ToolCallSpan(self.extractor.parser.call_prefix), start, 0

    def _content(self, text: str) -> list[str | ToolDelta]:
        if self.num_calls:
            whole = self._spaces + text
            text = whole.rstrip()
            self._spaces = whole[len(text) :]
        return [text] if text else []

    def inside(self, text: str) -> list[str | ToolDelta]:
        """Add text of the span."""
        assert self._span is not None
        parts: list[str | ToolDelta] = []
        for part in self._span.push(text):
            if isinstance(part, CallStarted):
                parts.append(self._begin(part.name))
            else:
                parts.append(ToolDelta(self.num_calls - 1, part))
        return parts

    def _begin(self, name: str) -> ToolDelta:
        self._spaces = ""
        self._num_in_span += 1
        self.num_calls += 1
        return ToolDelta(self.num_calls - 1, id=self.extractor.new_id(), name=name)

    def close(self, end: str) -> list[str | ToolDelta]:
        """End the span with this delimiter."""
        span, self._span = self._span, None
        assert span is not None
        calls = self.extractor.parse(span.text)
        if not calls and not self._num_in_span:  # not a call: return the text that the model wrote
            return self._content(self._start + span.text + end)
        parts: list[str | ToolDelta] = []
        for call in span.with_written_arguments(calls)[self._num_in_span :]:
            parts.append(self._begin(call.name))
            parts.append(ToolDelta(self.num_calls - 1, call.arguments))
        return parts

"""Splits an output into reasoning, content and tool calls, as a whole or while it is generated.

Tool calls are parsed in the content only, not within the reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.records import Channels
from quire.text.parsing.channels import ChannelDelta, ChannelParser
from quire.text.parsing.reasoning import ReasoningDelta, ReasoningExtractor
from quire.text.parsing.tool_calls import FinishedCall, StreamingToolCalls, ToolCallExtractor, ToolDelta, merge_parts


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """A parsed output. content: None if there is only reasoning or calls."""

    content: str | None
    reasoning: str | None
    calls: list[FinishedCall]


@dataclass(frozen=True, slots=True)
class OutputParser:
    """The parsers of one request, at least one of reasoning and tools. Shared by its completions.

    prompt: the prompt text, which may contain the begin of the first message of a channel format.
    """

    reasoning: ReasoningExtractor | None = None
    tools: ToolCallExtractor | None = None
    prompt: str = ""

    @property
    def channels(self) -> Channels | None:
        """The format of the messages in the output; None if it is not a channel format."""
        if self.reasoning is not None and self.reasoning.parser.channels is not None:
            return self.reasoning.parser.channels
        return self.tools.parser.channels if self.tools is not None else None

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Delimiters that the parsers need, so that they must not be skipped even if they are special tokens."""
        texts = self.channels.texts if self.channels is not None else ()
        if self.reasoning is not None:
            reasoning = self.reasoning.parser
            texts += (reasoning.start, reasoning.end, *reasoning.special_tokens)
        if self.tools is not None:
            tools = self.tools.parser
            texts += (tools.start, tools.end, *tools.special_tokens)
        return texts

    def stream(self) -> StreamingOutputParser | ChannelOutputParser:
        """A streaming parser for one completion."""
        if self.channels is not None:
            return ChannelOutputParser(self, self.channels)
        return StreamingOutputParser(self)

    def read(self, text: str, truncated: bool = False) -> ParsedOutput:
        """Parse a whole text. truncated: it ended because of its length."""
        if self.channels is not None:
            return self._read_messages(text, self.channels, truncated)
        reasoning: list[str] = []
        content: str | None = text
        if self.reasoning is not None:
            stream = self.reasoning.stream()
            parts = [*stream.push(text), *stream.flush()]
            reasoning = [part.text for part in parts if isinstance(part, ReasoningDelta)]
            content = "".join(part for part in parts if isinstance(part, str)) or (None if reasoning else "")
        calls: list[FinishedCall] = []
        if self.tools is not None and content is not None:
            content, calls = self.tools.read(content, truncated)
        return ParsedOutput(content, "".join(reasoning) if reasoning else None, calls)

    def _read_messages(self, text: str, channels: Channels, truncated: bool) -> ParsedOutput:
        stream = ChannelOutputParser(self, channels)
        parts = [*stream.push(text), *stream.flush(truncated)]
        reasoning = [part.text for part in parts if isinstance(part, ReasoningDelta)]
        content, calls = merge_parts([part for part in parts if not isinstance(part, ReasoningDelta)])
        return ParsedOutput(
            content or (None if reasoning or calls else ""), "".join(reasoning) if reasoning else None, calls
        )


class StreamingOutputParser:
    """Parser state of one completion."""

    def __init__(self, parser: OutputParser) -> None:
        self._reasoning = parser.reasoning.stream() if parser.reasoning else None
        self._tools = parser.tools.stream() if parser.tools else None

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        return self._tools.num_calls if self._tools else 0

    def push(self, text: str) -> list[str | ReasoningDelta | ToolDelta]:
        """Add text; returns the parts that are certain, in order."""
        return self._with_calls(self._reasoning.push(text) if self._reasoning else [text])

    def flush(self, truncated: bool = False) -> list[str | ReasoningDelta | ToolDelta]:
        """End the text. truncated: it ended because of its length."""
        parts = self._with_calls(self._reasoning.flush() if self._reasoning else [])
        return [*parts, *(self._tools.flush(truncated) if self._tools else [])]

    def _with_calls(self, parts: Sequence[ReasoningDelta | str]) -> list[str | ReasoningDelta | ToolDelta]:
        found: list[str | ReasoningDelta | ToolDelta] = []
        for part in parts:
            if isinstance(part, ReasoningDelta) or self._tools is None:
                found.append(part)
            else:
                found += self._tools.push(part)
        return [part for part in found if part != ""]


class ChannelOutputParser:
    """Parser state of one completion in a channel format. Messages of the same kind are joined by newlines.

    Reasoning or calls without a parser are returned as text, as the model wrote them. If the tool parser's format has
    no channels, calls are parsed in the text.
    """

    def __init__(self, parser: OutputParser, channels: Channels) -> None:
        self._messages = ChannelParser.from_prompt(parser.prompt, channels)
        self._tools = StreamingToolCalls(parser.tools) if parser.tools else None
        self._call_messages = self._tools if parser.tools and parser.tools.parser.channels else None
        self._has_reasoning = parser.reasoning is not None
        self._last_numbers: dict[str, int] = {}  # kind → number of the last message of which text was returned

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        return self._tools.num_calls if self._tools else 0

    def push(self, text: str) -> list[str | ReasoningDelta | ToolDelta]:
        """Add text; returns the parts that are certain, in order."""
        return [part for delta in self._messages.push(text) for part in self._parts(delta)]

    def flush(self, truncated: bool = False) -> list[str | ReasoningDelta | ToolDelta]:
        """End the text. truncated: it ended because of its length."""
        parts: list[str | ReasoningDelta | ToolDelta] = []
        for delta in self._messages.flush(truncated):
            if delta.kind == "call" and delta.last and self._call_messages is not None:
                parts += self._call_messages.close_unfinished(certain=True)
            else:
                parts += self._parts(delta)
        if self._tools is None:
            return parts
        if self._tools.extractor.calls_required:
            parts = [part for part in parts if not isinstance(part, str)]
        return [*parts, *self._tools.flush(truncated)]

    def _parts(self, delta: ChannelDelta) -> Sequence[str | ReasoningDelta | ToolDelta]:
        if delta.kind == "call" and self._call_messages is not None:
            return _call_parts(self._call_messages, delta)
        if delta.kind == "thought" and self._has_reasoning:
            return [ReasoningDelta(self._joined_text(delta))] if delta.text else []
        text = self._joined_text(delta) if delta.kind == "text" else delta.written
        if self._tools is not None and self._call_messages is None:
            return self._tools.push(text)
        return [text] if text else []

    def _joined_text(self, delta: ChannelDelta) -> str:
        """The text of a delta, after a newline if it begins another message of the same kind."""
        if not delta.number:  # whitespace between messages is dropped
            return delta.text if delta.text.strip() or not self._messages.number else ""
        if not delta.text:
            return ""
        last = self._last_numbers.get(delta.kind)
        self._last_numbers[delta.kind] = delta.number
        return delta.text if last in (None, delta.number) else "\n" + delta.text


def _call_parts(tools: StreamingToolCalls, delta: ChannelDelta) -> list[str | ToolDelta]:
    """The parts of a delta of a message that is a span of calls."""
    if delta.first:
        tools.open("")
    parts = tools.close(delta.written) if delta.last else tools.inside(delta.written)
    return [part for part in parts if part != ""]

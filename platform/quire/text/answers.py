"""The parts of an answer: reasoning, content and tool calls, whole or while it is written.

Calls are sought in the content only: what looks like one within the reasoning is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from quire.records import Channels
from quire.text.channels import ChannelStream, Piece
from quire.text.reasoning import ReasoningReader, Thought
from quire.text.tools import CalledTool, ToolDelta, ToolReader, ToolStream, gather


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. content is None where there is none beside reasoning or calls."""

    content: str | None
    reasoning: str | None
    calls: list[CalledTool]


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """Readers at work for one request, shared by its completions; at least one of them is there.

    prompt: what the answers go on from, which may have begun the first message of those that are a series of them.
    """

    reasoning: ReasoningReader | None = None
    tools: ToolReader | None = None
    prompt: str = ""

    @property
    def channels(self) -> Channels | None:
        """How answers that are a series of messages are told apart; None if they are not."""
        if self.reasoning is not None and self.reasoning.parser.channels is not None:
            return self.reasoning.parser.channels
        return self.tools.parser.channels if self.tools is not None else None

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that must stay in an answer though they may be special tokens."""
        marks = self.channels.texts if self.channels is not None else ()
        if self.reasoning is not None:
            parser = self.reasoning.parser
            marks += (parser.start, parser.end, *parser.marks)
        if self.tools is not None:
            format_ = self.tools.parser
            marks += (format_.start, format_.end, *format_.marks)
        return marks

    def stream(self) -> AnswerStream | MessageStream:
        """The reader of one completion."""
        if self.channels is not None:
            return MessageStream(self, self.channels)
        return AnswerStream(self)

    def read(self, text: str, cut: bool = False) -> Answer:
        """A whole text. cut: it would have gone on."""
        if self.channels is not None:
            return self._of_messages(text, self.channels, cut)
        thoughts: list[str] = []
        content: str | None = text
        if self.reasoning is not None:
            stream = self.reasoning.stream()
            parts = [*stream.push(text), *stream.flush()]
            thoughts = [part.text for part in parts if isinstance(part, Thought)]
            content = "".join(part for part in parts if isinstance(part, str)) or (None if thoughts else "")
        calls: list[CalledTool] = []
        if self.tools is not None and content is not None:
            content, calls = self.tools.read(content, cut)
        return Answer(content, "".join(thoughts) if thoughts else None, calls)

    def _of_messages(self, text: str, channels: Channels, cut: bool) -> Answer:
        stream = MessageStream(self, channels)
        parts = [*stream.push(text), *stream.flush(cut)]
        thoughts = [part.text for part in parts if isinstance(part, Thought)]
        content, calls = gather([part for part in parts if not isinstance(part, Thought)])
        return Answer(content or (None if thoughts or calls else ""), "".join(thoughts) if thoughts else None, calls)


class AnswerStream:
    """Where one completion stands."""

    def __init__(self, reader: AnswerReader) -> None:
        self._reasoning = reader.reasoning.stream() if reader.reasoning else None
        self._tools = reader.tools.stream() if reader.tools else None

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        return self._tools.num_calls if self._tools else 0

    def push(self, text: str) -> list[str | Thought | ToolDelta]:
        """What is certain now, in order."""
        return self._sorted(self._reasoning.push(text) if self._reasoning else [text])

    def flush(self, cut: bool = False) -> list[str | Thought | ToolDelta]:
        """The text has ended. cut: it would have gone on."""
        parts = self._sorted(self._reasoning.flush() if self._reasoning else [])
        return [*parts, *(self._tools.flush(cut) if self._tools else [])]

    def _sorted(self, parts: Sequence[Thought | str]) -> list[str | Thought | ToolDelta]:
        found: list[str | Thought | ToolDelta] = []
        for part in parts:
            if isinstance(part, Thought) or self._tools is None:
                found.append(part)
            else:
                found += self._tools.push(part)
        return [part for part in found if part != ""]


class MessageStream:
    """Where one completion stands that is a series of messages. Those of one kind are put together line by line.

    What nobody reads, be it reasoning or calls, is text as the model wrote it. Calls in a format that knows no messages
    are sought in the text.
    """

    def __init__(self, reader: AnswerReader, channels: Channels) -> None:
        self._messages = ChannelStream.after(reader.prompt, channels)
        self._tools = ToolStream(reader.tools) if reader.tools else None
        self._called = self._tools if reader.tools and reader.tools.parser.channels else None
        self._reasons = reader.reasoning is not None
        self._given: dict[str, int] = {}  # by kind, the message that was last given something of

    @property
    def num_calls(self) -> int:
        """Calls found so far."""
        return self._tools.num_calls if self._tools else 0

    def push(self, text: str) -> list[str | Thought | ToolDelta]:
        """What is certain now, in order."""
        return [part for piece in self._messages.push(text) for part in self._parts(piece)]

    def flush(self, cut: bool = False) -> list[str | Thought | ToolDelta]:
        """The text has ended. cut: it would have gone on."""
        parts: list[str | Thought | ToolDelta] = []
        for piece in self._messages.flush(cut):
            if piece.kind == "call" and piece.last and self._called is not None:
                parts += self._called.break_off(certain=True)
            else:
                parts += self._parts(piece)
        if self._tools is None:
            return parts
        if self._tools.reader.demanded:
            parts = [part for part in parts if not isinstance(part, str)]
        return [*parts, *self._tools.flush(cut)]

    def _parts(self, piece: Piece) -> Sequence[str | Thought | ToolDelta]:
        if piece.kind == "call" and self._called is not None:
            return _of_a_call(self._called, piece)
        if piece.kind == "thought" and self._reasons:
            return [Thought(self._on_a_line(piece))] if piece.text else []
        text = self._on_a_line(piece) if piece.kind == "text" else piece.written
        if self._tools is not None and self._called is None:
            return self._tools.push(text)
        return [text] if text else []

    def _on_a_line(self, piece: Piece) -> str:
        """The text of a piece, on a new line where its message is not the first of its kind."""
        if not piece.number:  # between messages white space says nothing
            return piece.text if piece.text.strip() or not self._messages.number else ""
        if not piece.text:
            return ""
        before = self._given.get(piece.kind)
        self._given[piece.kind] = piece.number
        return piece.text if before in (None, piece.number) else "\n" + piece.text


def _of_a_call(tools: ToolStream, piece: Piece) -> list[str | ToolDelta]:
    """What a piece of a message gives that is a span of calls."""
    if piece.first:
        tools.open("")
    parts = tools.close(piece.written) if piece.last else tools.inside(piece.written)
    return [part for part in parts if part != ""]

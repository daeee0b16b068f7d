"""Splits an output that is a series of messages, as of Harmony, while it arrives.

A `Channels` record defines the delimiters of messages and the meaning of their headers.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.records import Channels
from quire.records.reasoning import MessageKind
from quire.text.parsing.scanner import overlap
from quire.text.parsing.tool_spans import JsonScanner

MAX_HEADER = 512
"""Maximum characters of a header. A longer one is treated as text."""


@dataclass(frozen=True, slots=True)
class ChannelDelta:
    """New text of one message. written: as the model wrote it, with delimiters and header. text: of the body only.

    number: number of the message, 0 for text outside of messages. first, last: the message begins or ends here.
    """

    kind: MessageKind
    written: str
    text: str = ""
    number: int = 0
    first: bool = False
    last: bool = False


@dataclass
class ChannelParser:
    """Parser state of one output. A message without an end lasts to the end of the output."""

    channels: Channels
    _held: str = ""  # text that may be the beginning of a delimiter
    _header: str | None = None  # header of a message whose body has not begun
    _num_prompt_chars: int = 0  # characters of the header that are in the prompt
    _kind: MessageKind | None = None  # kind of the message whose body is being read
    number: int = 0  # number of messages whose body has begun
    _value: JsonScanner | None = None  # JSON state in the body of a call
    _is_blank: bool = True  # the body consists of whitespace so far

    @classmethod
    def from_prompt(cls, prompt: str, channels: Channels) -> ChannelParser:
        """A parser for outputs after this prompt, which may contain the begin of the first message."""
        parser = cls(channels)
        at = prompt.rfind(channels.starts[0])
        if at >= 0:
            parser.push(prompt[at:])
            parser._on_text(parser._held)
            parser._held = ""
            parser._num_prompt_chars = len(parser._header or "")
        return parser

    @property
    def inside(self) -> bool:
        """Whether the text so far ends within reasoning."""
        return self._kind == "thought"

    @property
    def is_over(self) -> bool:
        """False: further reasoning messages may follow at any time."""
        return False

    def push(self, text: str) -> list[ChannelDelta]:
        """Add text; returns the deltas that are certain, in order."""
        buffer, self._held = self._held + text, ""
        deltas: list[ChannelDelta] = []
        while buffer:
            at, delimiter = self._find_first(buffer)
            if not delimiter:
                held = max(overlap(buffer, one) for one in self._delimiters())
                self._held = buffer[len(buffer) - held :] if held else ""
                deltas += self._on_text(buffer[: len(buffer) - held])
                break
            deltas += self._on_text(buffer[:at])
            buffer = buffer[at + len(delimiter) :]
            deltas += self._on_delimiter(delimiter)
        return deltas

    def flush(self, truncated: bool = False) -> list[ChannelDelta]:
        """End the text. An open message ends here; a header without a body is text, unless the output is truncated."""
        buffer, self._held = self._held, ""
        deltas = self._on_text(buffer)
        if self._header is not None:
            deltas += [] if truncated else self._header_as_text()
        elif self._kind is not None:
            deltas.append(ChannelDelta(self._kind, "", number=self.number, last=True))
            self._kind = None
        return deltas

    def _delimiters(self) -> tuple[str, ...]:
        """The delimiters that have a meaning in the current state."""
        channels = self.channels
        if self._header is not None:
            return (channels.begin, *channels.ends)
        return channels.starts if self._kind is None else (*channels.ends, *channels.starts)

    def _find_first(self, buffer: str) -> tuple[int, str]:
        """Position and text of the first delimiter; (-1, "") if there is none."""
        found = [(at, delimiter) for delimiter in self._delimiters() if (at := buffer.find(delimiter)) >= 0]
        return min(found, default=(-1, ""))

    def _on_text(self, text: str) -> list[ChannelDelta]:
        """Handle text without a delimiter."""
        if not text:
            return []
        if self._header is not None:
            self._header += text
            return self._header_as_text() if len(self._header) > MAX_HEADER else []
        if self._kind is None:
            return [ChannelDelta("text", text, text)]
        self._scan_body(text)
        return [ChannelDelta(self._kind, text, text, self.number)]

    def _scan_body(self, text: str) -> None:
        """Track whether the text is within a string of a call's arguments, in which delimiters have no meaning."""
        if self._is_blank:
            text = text.lstrip()
            if text:
                self._is_blank = False
                self._value = JsonScanner() if self._kind == "call" and text.startswith("{") else None
        if self._value is not None:
            self._value.scan(text)

    def _on_delimiter(self, delimiter: str) -> list[ChannelDelta]:
        """Change the state at a delimiter."""
        channels = self.channels
        if self._kind is not None:
            if self._value is not None and self._value.in_string:
                return self._on_text(delimiter)
            ended = ChannelDelta(
                self._kind, delimiter if delimiter in channels.ends else "", number=self.number, last=True
            )
            self._kind = None
            if delimiter not in channels.ends:
                self._header, self._num_prompt_chars = delimiter, 0
            return [ended]
        if self._header is None:
            self._header, self._num_prompt_chars = delimiter, 0
            return []
        if delimiter != channels.begin:  # the message ended before its body began
            self._header += delimiter
            return self._header_as_text()
        self._kind = channels.kind(self._header)
        written = self._header[self._num_prompt_chars :] + delimiter
        self._header, self._value, self._is_blank = None, None, True
        self.number += 1
        return [ChannelDelta(self._kind, written, number=self.number, first=True)]

    def _header_as_text(self) -> list[ChannelDelta]:
        """Treat the header as text, without the part that is in the prompt."""
        assert self._header is not None
        text, self._header = self._header[self._num_prompt_chars :], None
        return [ChannelDelta("text", text, text)] if text else []

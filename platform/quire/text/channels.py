"""An answer that is a series of messages, taken apart while it arrives in pieces.

`Channels` records say what stands around messages and what their headers mean. It knows no format, and neither what
calls nor what reasoning looks like to clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.records import Channels
from quire.records.channels import MessageKind
from quire.text.json_end import JsonEnd
from quire.text.machine import overlap

MAX_HEADER = 512
"""Characters in which a header must have come to its end; beyond, it was text."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of one message. written: as the model wrote it, with what stands around the body; text: of the body.

    number: which message it is of, 0 for what stands in none. first, last: the message begins or ends with it.
    """

    kind: MessageKind
    written: str
    text: str = ""
    number: int = 0
    first: bool = False
    last: bool = False


@dataclass
class ChannelStream:
    """Where one answer stands. A message without its end lasts to the end of the answer."""

    channels: Channels
    _held: str = ""  # text that may be the beginning of a delimiter
    _header: str | None = None  # of a message whose body has not begun
    _unwritten: int = 0  # characters of the header that the prompt has
    _kind: MessageKind | None = None  # of the message in whose body it stands
    number: int = 0  # messages whose body has begun
    _value: JsonEnd | None = None  # the body of a call, as far as it is JSON
    _blank: bool = True  # nothing but white space has come of a body

    @classmethod
    def after(cls, prompt: str, channels: Channels) -> ChannelStream:
        """For an answer to this prompt, which may have begun its first message."""
        stream = cls(channels)
        at = prompt.rfind(channels.starts[0])
        if at >= 0:
            stream.push(prompt[at:])
            stream._take(stream._held)
            stream._held = ""
            stream._unwritten = len(stream._header or "")
        return stream

    @property
    def inside(self) -> bool:
        """Whether it stands within reasoning."""
        return self._kind == "thought"

    @property
    def over(self) -> bool:
        """Whether no reasoning will come any more, which nobody can say."""
        return False

    def push(self, text: str) -> list[Piece]:
        """Take in text; pieces that are certain, in order."""
        buffer, self._held = self._held + text, ""
        pieces: list[Piece] = []
        while buffer:
            at, mark = self._first(buffer)
            if not mark:
                held = max(overlap(buffer, one) for one in self._marks())
                self._held = buffer[len(buffer) - held :] if held else ""
                pieces += self._take(buffer[: len(buffer) - held])
                break
            pieces += self._take(buffer[:at])
            buffer = buffer[at + len(mark) :]
            pieces += self._cross(mark)
        return pieces

    def flush(self, cut: bool = False) -> list[Piece]:
        """The text has ended: a message counts as far as it came; a header without a body is text, unless cut off."""
        buffer, self._held = self._held, ""
        pieces = self._take(buffer)
        if self._header is not None:
            pieces += [] if cut else self._give_up()
        elif self._kind is not None:
            pieces.append(Piece(self._kind, "", number=self.number, last=True))
            self._kind = None
        return pieces

    def _marks(self) -> tuple[str, ...]:
        """The delimiters that count here."""
        channels = self.channels
        if self._header is not None:
            return (channels.begin, *channels.ends)
        return channels.starts if self._kind is None else (*channels.ends, *channels.starts)

    def _first(self, buffer: str) -> tuple[int, str]:
        """The delimiter that comes first, and where; "" if none does."""
        found = [(at, mark) for mark in self._marks() if (at := buffer.find(mark)) >= 0]
        return min(found, default=(-1, ""))

    def _take(self, text: str) -> list[Piece]:
        """Text without a delimiter that counts."""
        if not text:
            return []
        if self._header is not None:
            self._header += text
            return self._give_up() if len(self._header) > MAX_HEADER else []
        if self._kind is None:
            return [Piece("text", text, text)]
        self._follow(text)
        return [Piece(self._kind, text, text, self.number)]

    def _follow(self, text: str) -> None:
        """Whether a delimiter that comes next stands within a string of a call's arguments."""
        if self._blank:
            text = text.lstrip()
            if text:
                self._blank = False
                self._value = JsonEnd() if self._kind == "call" and text.startswith("{") else None
        if self._value is not None:
            self._value.take(text)

    def _cross(self, mark: str) -> list[Piece]:
        """Pass a delimiter."""
        channels = self.channels
        if self._kind is not None:
            if self._value is not None and self._value.in_string:
                return self._take(mark)
            ended = Piece(self._kind, mark if mark in channels.ends else "", number=self.number, last=True)
            self._kind = None
            if mark in channels.ends:
                return [ended]
            self._header, self._unwritten = mark, 0
            return [ended]
        if self._header is None:
            self._header, self._unwritten = mark, 0
            return []
        if mark != channels.begin:  # the message ended before its body began
            self._header += mark
            return self._give_up()
        self._kind = channels.kind(self._header)
        written = self._header[self._unwritten :] + mark
        self._header, self._value, self._blank = None, None, True
        self.number += 1
        return [Piece(self._kind, written, number=self.number, first=True)]

    def _give_up(self) -> list[Piece]:
        """What was taken for a header is text, but for what the prompt has of it."""
        assert self._header is not None
        text, self._header = self._header[self._unwritten :], None
        return [Piece("text", text, text)] if text else []

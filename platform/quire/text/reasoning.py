"""What a model thinks, told apart from what it answers, in text that arrives in pieces.

A `ReasoningParser` record names the delimiters. Reasoning comes first in an answer or not at all; what looks like
a delimiter later is text. It knows no format and no HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quire.errors import ConfigError
from quire.records import ReasoningParser, Registry
from quire.text.machine import overlap

HOOK = "quire_reasoning_parsers"
AUTO = "auto"
"""The name that stands for whichever parser recognises the chat template."""


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of reasoning."""

    text: str


def choose_reasoning(registry: Registry, name: str | None, template: str | None) -> ReasoningParser | None:
    """The parser called `name`; for `AUTO` the one that recognises the chat template, if one does.

    For None the same, if it is one without which answers could not be read, being a series of messages.
    Raises `ConfigError` for a name nobody has, and when several parsers recognise the template.
    """
    parsers: Mapping[str, ReasoningParser] = registry.of(HOOK)
    if name is None:
        parsers = {key: parser for key, parser in parsers.items() if parser.channels is not None}
    if template is None and name in (None, AUTO):
        return None
    if name is not None and name != AUTO:
        if name not in parsers:
            known = ", ".join([AUTO, *sorted(parsers)])
            raise ConfigError(f"--reasoning-parser {name!r} is not one of {known}.")
        return parsers[name]
    matching = [parser for parser in parsers.values() if parser.matches(template or "")]
    if len(matching) > 1:
        names = ", ".join(parser.name for parser in matching)
        raise ConfigError(
            f"Several reasoning parsers fit the chat template: {names}. Name one with --reasoning-parser."
        )
    return matching[0] if matching else None


@dataclass(frozen=True, slots=True)
class ReasoningReader:
    """A parser at work for one request. inside: its answers begin within the reasoning. closed: the prompt ended it."""

    parser: ReasoningParser
    inside: bool
    closed: bool = False

    @classmethod
    def after(cls, prompt: str, parser: ReasoningParser) -> ReasoningReader:
        """For answers to this prompt."""
        tail = prompt.rstrip()
        closed = tail.endswith(parser.end.rstrip())
        opened = tail.endswith(parser.start.rstrip())
        return cls(parser, inside=not closed and (opened or parser.implicit), closed=closed)

    def stream(self) -> ReasoningStream:
        """The reader of one completion."""
        return ReasoningStream(self)


class ReasoningStream:
    """Where one completion stands. White space around the reasoning, and line breaks after it, belong to nothing."""

    def __init__(self, reader: ReasoningReader) -> None:
        self._parser = reader.parser
        self.inside = reader.inside
        self._begun = reader.closed  # whether it is known if the answer begins with the delimiter
        self._held = ""
        self._spaces = ""
        self._bare = True  # nothing of this part was given yet
        self._reasoned = False

    @property
    def over(self) -> bool:
        """Whether no reasoning will come any more."""
        return self._begun and not self.inside

    def push(self, text: str) -> list[Thought | str]:
        """Pieces of reasoning, and text after it."""
        buffer, self._held = self._held + text, ""
        if not self._begun:
            bare = buffer.lstrip()
            if self._parser.start.startswith(bare):
                if bare != self._parser.start:
                    self._held = buffer
                    return []
                bare = ""
            elif bare.startswith(self._parser.start):
                bare = bare[len(self._parser.start) :]
            else:
                self._begun = True
                return self._advance(buffer)
            self._begun = self.inside = True
            return self._advance(bare)
        return self._advance(buffer)

    def flush(self) -> list[Thought | str]:
        """The text has ended: what was held is of the part where it stands."""
        buffer, self._held = self._held, ""
        self._begun = True
        return self._thought(buffer) if self.inside else self._content(buffer)

    def _advance(self, buffer: str) -> list[Thought | str]:
        if not self.inside:
            return self._content(buffer)
        end = self._parser.end
        at = buffer.find(end)
        if at < 0:
            held = overlap(buffer, end)
            self._held = buffer[len(buffer) - held :] if held else ""
            return self._thought(buffer[: len(buffer) - held])
        parts = self._thought(buffer[:at])
        self.inside, self._bare, self._reasoned = False, True, True
        return [*parts, *self._content(buffer[at + len(end) :])]

    def _thought(self, text: str) -> list[Thought | str]:
        whole = self._spaces + text
        if self._bare:
            whole = whole.lstrip()
        text = whole.rstrip()
        self._spaces = whole[len(text) :]
        if not text:
            return []
        self._bare = False
        return [Thought(text)]

    def _content(self, text: str) -> list[Thought | str]:
        if self._reasoned and self._bare:
            text = text.lstrip("\n")
        if not text:
            return []
        self._bare = False
        return [text]

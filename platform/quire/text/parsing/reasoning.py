"""Separates reasoning from content in text that arrives in parts, and counts reasoning tokens.

A `ReasoningParser` record names the delimiters. Reasoning comes first in an output or not at all; later delimiters are
ordinary text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quire.errors import ConfigError
from quire.records import ReasoningParser, Registry
from quire.text.parsing.channels import ChannelParser
from quire.text.parsing.scanner import overlap
from quire.text.tokenizer.decode import make_decoder
from quire.text.tokenizer.tokenizer import Tokenizer

HOOK = "quire_reasoning_parsers"
AUTO = "auto"
"""Parser name for the parser that recognizes the chat template."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text of the reasoning."""

    text: str


def choose_reasoning(registry: Registry, name: str | None, template: str | None) -> ReasoningParser | None:
    """The parser called `name`; for `AUTO` the one that recognizes the chat template, or None.

    Without a name, only parsers of channel formats are matched, because their outputs cannot be read without one.
    Raises `ConfigError` for an unknown name, and when several parsers recognize the template.
    """
    parsers: Mapping[str, ReasoningParser] = registry.by_hook(HOOK)
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
class ReasoningExtractor:
    """Extracts the reasoning from the outputs of one request.

    inside: outputs begin within the reasoning. closed: the prompt ended the reasoning.
    """

    parser: ReasoningParser
    inside: bool
    closed: bool = False

    @classmethod
    def from_prompt(cls, prompt: str, parser: ReasoningParser) -> ReasoningExtractor:
        """An extractor for outputs after this prompt."""
        tail = prompt.rstrip()
        closed = tail.endswith(parser.end.rstrip())
        opened = tail.endswith(parser.start.rstrip())
        return cls(parser, inside=not closed and (opened or parser.implicit), closed=closed)

    def stream(self) -> StreamingReasoning:
        """A streaming parser for one completion."""
        return StreamingReasoning(self)


class StreamingReasoning:
    """Parser state of one completion. Whitespace around the reasoning and line breaks after it are dropped."""

    def __init__(self, extractor: ReasoningExtractor) -> None:
        self._parser = extractor.parser
        self.inside = extractor.inside
        self._is_decided = extractor.closed  # whether it is known if the output begins with the delimiter
        self._held = ""
        self._spaces = ""
        self._is_blank = True  # no text of the current part was returned yet
        self._has_reasoned = False

    @property
    def is_over(self) -> bool:
        """Whether no further reasoning can follow."""
        return self._is_decided and not self.inside

    def push(self, text: str) -> list[ReasoningDelta | str]:
        """Add text; returns new reasoning, and new text after it."""
        buffer, self._held = self._held + text, ""
        if not self._is_decided:
            stripped = buffer.lstrip()
            if self._parser.start.startswith(stripped):
                if stripped != self._parser.start:
                    self._held = buffer
                    return []
                stripped = ""
            elif stripped.startswith(self._parser.start):
                stripped = stripped[len(self._parser.start) :]
            else:
                self._is_decided = True
                return self._advance(buffer)
            self._is_decided = self.inside = True
            return self._advance(stripped)
        return self._advance(buffer)

    def flush(self) -> list[ReasoningDelta | str]:
        """End the text: the held text belongs to the current part."""
        buffer, self._held = self._held, ""
        self._is_decided = True
        return self._reasoning(buffer) if self.inside else self._content(buffer)

    def _advance(self, buffer: str) -> list[ReasoningDelta | str]:
        if not self.inside:
            return self._content(buffer)
        end = self._parser.end
        at = buffer.find(end)
        if at < 0:
            held = overlap(buffer, end)
            self._held = buffer[len(buffer) - held :] if held else ""
            return self._reasoning(buffer[: len(buffer) - held])
        parts = self._reasoning(buffer[:at])
        self.inside, self._is_blank, self._has_reasoned = False, True, True
        return [*parts, *self._content(buffer[at + len(end) :])]

    def _reasoning(self, text: str) -> list[ReasoningDelta | str]:
        whole = self._spaces + text
        if self._is_blank:
            whole = whole.lstrip()
        text = whole.rstrip()
        self._spaces = whole[len(text) :]
        if not text:
            return []
        self._is_blank = False
        return [ReasoningDelta(text)]

    def _content(self, text: str) -> list[ReasoningDelta | str]:
        if self._has_reasoned and self._is_blank:
            text = text.lstrip("\n")
        if not text:
            return []
        self._is_blank = False
        return [text]


class ReasoningTokenCounter:
    """Counts the reasoning tokens of one completion: tokens that begin and end within the reasoning, no delimiters."""

    def __init__(self, extractor: ReasoningExtractor, tokenizer: Tokenizer, prompt: str = "") -> None:
        channels = extractor.parser.channels
        self._stream = ChannelParser.from_prompt(prompt, channels) if channels else extractor.stream()
        self._decoder = make_decoder(tokenizer, skip_special_tokens=False)
        self._num_seen = 0
        self.count = 0

    def update(self, ids: Sequence[int]) -> int:
        """The count for all tokens of the completion so far. Only tokens that are new since the last call are read."""
        for token_id in ids[self._num_seen :]:
            if self._stream.is_over:
                break
            was_inside = self._stream.inside
            self._stream.push(self._decoder.push((token_id,)))
            self.count += was_inside and self._stream.inside
        self._num_seen = len(ids)
        return self.count

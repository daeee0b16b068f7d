"""Finds stop strings and delimited spans in text that arrives in parts.

There is one immutable scanner per request and one small immutable state per sequence. The result does not depend on
how the text is divided into parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

TEXT = "text"
"""The kind of text outside of all spans."""


@dataclass(frozen=True, slots=True)
class MatchSpan:
    """Delimiters of a span of text, such as a tool call.

    An empty `start`: the text begins inside the span. An empty `end`: the span lasts to the end of the text.
    """

    kind: str
    start: str
    end: str


class ScanEvent(NamedTuple):
    """New text of one kind, without delimiters.

    number: number of the span, counted over all kinds from 0; -1 outside of spans. opened, closed: a delimiter began or
    ended the span here; such an event may have no text.
    """

    kind: str
    text: str
    number: int = -1
    opened: bool = False
    closed: bool = False


class State(NamedTuple):
    """Scanner state of one sequence.

    held: text that may be the beginning of a delimiter. matched: the stop string that was found.
    """

    span: MatchSpan | None = None
    number: int = -1
    held: str = ""
    matched: str | None = None


class ScanStep(NamedTuple):
    """The result of a step: the new state, and the text that became certain."""

    state: State
    events: tuple[ScanEvent, ...]

    @property
    def text(self) -> str:
        """The text of all events, for scanners without spans."""
        return self.events[0].text if len(self.events) == 1 else "".join([event.text for event in self.events])

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self.state.matched


class TextScanner:
    """Ends text at stop strings, and divides it into spans.

    The delimiter that is completed first is matched, and the longest one on a tie. Stop strings are also matched inside
    spans. No text is returned after a stop string.
    """

    def __init__(self, stops: Iterable[str] = (), spans: Sequence[MatchSpan] = ()) -> None:
        self.stops = tuple(dict.fromkeys(stops))
        self.spans = tuple(spans)
        self._outside = _Matcher((*self.stops, *(span.start for span in self.spans if span.start)))
        self._inside = {span: _Matcher((*self.stops, span.end) if span.end else self.stops) for span in self.spans}
        self._by_start = {span.start: span for span in self.spans if span.start}

    def start(self) -> State:
        """The state before any text."""
        for span in self.spans:
            if not span.start:
                return State(span=span, number=0)
        return State()

    def step(self, state: State, text: str, enabled: bool = True) -> ScanStep:
        """Add `text`; returns the text that is certainly not part of a delimiter.

        enabled: if False, delimiters that are completed in this text are ignored (for min_tokens).
        """
        if state.matched is not None:
            return ScanStep(state, ())
        events: list[ScanEvent] = []
        buffer = state.held + text
        matcher = self._matcher(state)
        while enabled and (found := matcher.first(buffer)) is not None:
            begin, delimiter = found
            state = self._pass_delimiter(state, buffer[:begin], delimiter, events)
            if state.matched is not None:
                return ScanStep(state, tuple(events))
            buffer = buffer[begin + len(delimiter) :]
            matcher = self._matcher(state)
        held = matcher.held(buffer)
        self._emit(state, buffer[: len(buffer) - held] if held else buffer, events)
        rest = buffer[len(buffer) - held :] if held else ""
        return ScanStep(state if rest == state.held else state._replace(held=rest), tuple(events))

    def flush(self, state: State) -> ScanStep:
        """End the text: the held text is ordinary text; an open span remains open."""
        events: list[ScanEvent] = []
        if state.matched is None:
            self._emit(state, state.held, events)
        return ScanStep(state._replace(held=""), tuple(events))

    def _matcher(self, state: State) -> _Matcher:
        return self._outside if state.span is None else self._inside[state.span]

    def _emit(self, state: State, text: str, events: list[ScanEvent]) -> None:
        if text:
            events.append(ScanEvent(state.span.kind if state.span else TEXT, text, state.number if state.span else -1))

    def _pass_delimiter(self, state: State, text: str, delimiter: str, events: list[ScanEvent]) -> State:
        """The state after `text` and the delimiter that follows it."""
        self._emit(state, text, events)
        span = state.span
        if span is not None and delimiter == span.end:
            events.append(ScanEvent(span.kind, "", state.number, closed=True))
            return State(None, state.number)
        if span is None and delimiter in self._by_start:
            opened = self._by_start[delimiter]
            events.append(ScanEvent(opened.kind, "", state.number + 1, opened=True))
            return State(opened, state.number + 1)
        return State(span, state.number, "", delimiter)


class _Matcher:
    """Finds the first of several strings."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings

    def first(self, text: str) -> tuple[int, str] | None:
        """Start and text of the earliest-ending match; the longest one on a tie."""
        best: tuple[int, int, str] | None = None
        for string in self._strings:
            begin = text.find(string)
            if begin >= 0 and (best is None or (begin + len(string), begin) < best[:2]):
                best = (begin + len(string), begin, string)
        return None if best is None else (best[1], best[2])

    def held(self, text: str) -> int:
        """Length of the longest suffix of `text` that is a proper prefix of one of the strings."""
        longest = 0
        for string in self._strings:
            longest = max(longest, overlap(text, string))
        return longest


def overlap(text: str, string: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `string`."""
    begin = text.find(string[0], max(0, len(text) - len(string) + 1))
    while begin >= 0:
        if string.startswith(text[begin:]):
            return len(text) - begin
        begin = text.find(string[0], begin + 1)
    return 0

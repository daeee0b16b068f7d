"""Conformance of tool parsers: the host's own text machine, fed with every way to cut a text in two or three."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from quire.records import ToolCall, ToolParser
from quire.testing.demand import demand
from quire.text.machine import Span, StopMachine

KIND = "call"
MAX_SPLITS = 2000


def check_parser(
    record: ToolParser,
    texts: Mapping[str, Sequence[ToolCall]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    broken: Sequence[str] = (),
    templates: Mapping[str, bool] | None = None,
) -> None:
    """A text gives its calls however it is cut; a broken span raises ValueError and nothing else.

    texts: whole answers of a model, and the calls in them. broken: texts between the delimiters that
    are no call. templates: chat templates, and whether `matches` should say yes.
    """
    for text, calls in texts.items():
        for pieces in _splits(text):
            found = _calls(record, pieces, tools)
            demand(found == list(calls), f"{pieces!r:.200} gives {found}, not {list(calls)}.")
    for span in broken:
        _refuses(record, span, tools)
    for template, expected in (templates or {}).items():
        demand(record.matches(template) == expected, f"matches must give {expected} for {template!r:.80}.")


def _splits(text: str) -> Iterator[tuple[str, ...]]:
    """The text whole, by characters, cut in two anywhere, and cut in three as far as there is time."""
    yield (text,)
    yield tuple(text)
    inner = range(1, len(text))
    yield from ((text[:i], text[i:]) for i in inner)
    pairs = list(combinations(inner, 2))
    for i, j in pairs[:: max(1, len(pairs) // MAX_SPLITS)]:
        yield text[:i], text[i:j], text[j:]


def _calls(record: ToolParser, pieces: Sequence[str], tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    machine = StopMachine(spans=[Span(KIND, record.start, record.end)])
    state = machine.start()
    spans: dict[int, str] = {}
    for piece in pieces:
        step = machine.step(state, piece)
        state = step.state
        for event in step.events:
            if event.kind == KIND:
                spans[event.number] = spans.get(event.number, "") + event.text
    for event in machine.flush(state).events:
        if event.kind == KIND:
            spans[event.number] = spans.get(event.number, "") + event.text
    return [call for span in spans.values() for call in record.parse(span, tools)]


def _refuses(record: ToolParser, span: str, tools: Sequence[Mapping[str, Any]]) -> None:
    try:
        calls = record.parse(span, tools)
    except ValueError:
        return
    raise AssertionError(f"parse must raise ValueError for {span!r:.80}; it gave {calls}.")

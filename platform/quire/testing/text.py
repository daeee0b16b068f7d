"""Conformance of tool parsers: the host's own reader, fed with every way to cut a text in two or three."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from quire.records import Registry, ToolCall, ToolParser
from quire.testing.demand import demand
from quire.text.answers import AnswerReader
from quire.text.reasoning import Thought
from quire.text.tools import ToolReader, gather

MAX_SPLITS = 800


def check_parser(
    record: ToolParser,
    texts: Mapping[str, Sequence[ToolCall]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    broken: Sequence[str] = (),
    templates: Mapping[str, bool] | None = None,
    contents: Mapping[str, str] | None = None,
) -> None:
    """A text gives its calls however it is cut, streamed and whole; a broken span raises ValueError and nothing else.

    texts: whole answers of a model, and the calls in them. broken: texts between the delimiters that
    are no call. templates: chat templates, and whether `matches` should say yes. contents: of some of `texts`, what
    of it is no call.
    """
    reader = ToolReader(record, tools, Registry())
    for text, calls in texts.items():
        content = (contents or {}).get(text)
        for pieces in _splits(text):
            _compare(reader, pieces, calls, content)
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


def _compare(reader: ToolReader, pieces: Sequence[str], calls: Sequence[ToolCall], content: str | None) -> None:
    stream = AnswerReader(tools=reader).stream()
    parts = [part for piece in pieces for part in stream.push(piece)] + stream.flush()
    said, made = gather([part for part in parts if not isinstance(part, Thought)])
    found = [ToolCall(call.name, _plain(call.arguments)) for call in made]
    wanted = [ToolCall(call.name, _plain(call.arguments)) for call in calls]
    demand(found == wanted, f"{pieces!r:.200} gives {found}, not {wanted}.")
    demand(content is None or (said or "") == content, f"{pieces!r:.200} gives the text {said!r}, not {content!r}.")


def _plain(arguments: str) -> str:
    """JSON in its plainest spelling."""
    try:
        return json.dumps(json.loads(arguments), ensure_ascii=False)
    except ValueError:
        return arguments


def _refuses(record: ToolParser, span: str, tools: Sequence[Mapping[str, Any]]) -> None:
    try:
        calls = record.parse(span, tools)
    except ValueError:
        return
    raise AssertionError(f"parse must raise ValueError for {span!r:.80}; it gave {calls}.")

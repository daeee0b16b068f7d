"""Conformance of tool parsers and reasoning parsers: each text is split in many ways and streamed through Quire."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from quire.records import ReasoningParser, Registry, ToolCall, ToolParser
from quire.text.parsing.output_parser import OutputParser
from quire.text.parsing.reasoning import ReasoningDelta, ReasoningExtractor
from quire.text.parsing.tool_calls import ToolCallExtractor, merge_parts
from quire_testing.require import require

MAX_SPLITS = 800
"""Splits of a text in three that are tried."""


def check_tool_parser(
    record: ToolParser,
    texts: Mapping[str, Sequence[ToolCall]],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    broken: Sequence[str] = (),
    templates: Mapping[str, bool] | None = None,
    contents: Mapping[str, str] | None = None,
) -> None:
    """A text has the same calls whole and streamed, however it is split; a broken span raises ValueError only.

    texts: whole answers of a model, and the calls in them. broken: texts between the delimiters that are no call.
    templates: chat templates, and what `matches` must return. contents: for some of `texts`, the text around the calls.
    """
    reader = ToolCallExtractor(record, tools, Registry())
    for text, calls in texts.items():
        content = (contents or {}).get(text)
        for pieces in _splits(text):
            _compare(reader, pieces, calls, content)
    for span in broken:
        _refuses(record, span, tools)
    for template, expected in (templates or {}).items():
        require(record.matches(template) == expected, f"matches must give {expected} for {template!r:.80}.")


def check_reasoning_parser(
    record: ReasoningParser, texts: Mapping[str, tuple[str, str]], *, templates: Mapping[str, bool] | None = None
) -> None:
    """A text has the same reasoning and the same answer whole and streamed, however it is split.

    texts: whole answers of a model, with the reasoning and the answer in each. templates: chat templates, and what
    `matches` must return.
    """
    has_format = record.channels is not None or (record.start and record.end)
    require(has_format, f"{record.name} needs `start` and `end`, or `channels`.")
    for prompt, opened in (("Hi.", False), *(() if record.channels else ((f"Hi.{record.start}", True),))):
        reader = OutputParser(reasoning=ReasoningExtractor.from_prompt(prompt, record), prompt=prompt)
        for text, expected in texts.items():
            answer = text.removeprefix(record.start) if opened else text
            if opened and answer == text and record.start:
                continue
            for pieces in _splits(answer):
                found = _reasoning(reader, pieces)
                require(found == expected, f"After {prompt!r}, {pieces!r:.200} gives {found}, not {expected}.")
    for template, wanted in (templates or {}).items():
        require(record.matches(template) == wanted, f"matches must give {wanted} for {template!r:.80}.")


def _reasoning(reader: OutputParser, pieces: Sequence[str]) -> tuple[str, str]:
    stream = reader.stream()
    parts = [part for piece in pieces for part in stream.push(piece)] + stream.flush()
    reasoning = "".join(part.text for part in parts if isinstance(part, ReasoningDelta))
    return reasoning, "".join(part for part in parts if isinstance(part, str))


def _splits(text: str) -> Iterator[tuple[str, ...]]:
    """The whole text, its characters, every split in two, and at most `MAX_SPLITS` splits in three."""
    yield (text,)
    yield tuple(text)
    inner = range(1, len(text))
    yield from ((text[:i], text[i:]) for i in inner)
    pairs = list(combinations(inner, 2))
    for i, j in pairs[:: max(1, len(pairs) // MAX_SPLITS)]:
        yield text[:i], text[i:j], text[j:]


def _compare(reader: ToolCallExtractor, pieces: Sequence[str], calls: Sequence[ToolCall], content: str | None) -> None:
    stream = OutputParser(tools=reader).stream()
    parts = [part for piece in pieces for part in stream.push(piece)] + stream.flush()
    said, made = merge_parts([part for part in parts if not isinstance(part, ReasoningDelta)])
    found = [ToolCall(call.name, _plain(call.arguments)) for call in made]
    wanted = [ToolCall(call.name, _plain(call.arguments)) for call in calls]
    require(found == wanted, f"{pieces!r:.200} gives {found}, not {wanted}.")
    require(content is None or (said or "") == content, f"{pieces!r:.200} gives the text {said!r}, not {content!r}.")


def _plain(arguments: str) -> str:
    """JSON without differences in spelling."""
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

"""The formats of DeepSeek V3, R1 and V3.1: special tokens around all calls and around each call.

V3:   …begin>function<｜tool▁sep｜>f, a line, a Markdown fence with the arguments, <｜tool▁call▁end｜>
V3.1: …begin>f<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜>
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolCallFormat, ToolParser
from quire_plugins.tools.json_calls import json_object_at

START, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
BEGIN, SEP, FINISH = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
FENCE = "```json\n"

FENCED = re.compile(rf"(?:\s*```)?(?:\s*{FINISH})?\s*{BEGIN}\s*\w+{SEP}\s*(\S+)\s*```json\s*(?=\{{)")
PLAIN = re.compile(rf"(?:\s*{FINISH})?\s*{BEGIN}\s*(\S+?)\s*{SEP}\s*(?=\{{)")


def _parse(text: str, head: re.Pattern[str]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    at = 0
    while found := head.match(text, at):
        arguments, at = json_object_at(text, found.end())
        calls.append(ToolCall(found[1], arguments))
    if not calls:
        raise ValueError("there is no call between the marks")
    return calls


def parse_fenced(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Parses calls of V3 and R1. Raises ValueError."""
    del tools
    return _parse(text, FENCED)


def parse_plain(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
    """Parses calls of V3.1. Raises ValueError."""
    del tools
    return _parse(text, PLAIN)


def frame_fenced(name: str, template: str) -> ToolCallFormat:
    """Format of a call of V3."""
    del template
    before = f"{BEGIN}function{SEP}{name}\n{FENCE}"
    return ToolCallFormat(before=before, after=f"\n```{FINISH}", first=START, last=END, separator="\n")


def frame_plain(name: str, template: str) -> ToolCallFormat:
    """Format of a call of V3.1."""
    del template
    return ToolCallFormat(before=f"{BEGIN}{name}{SEP}", after=FINISH, first=START, last=END)


def parsers() -> Iterable[ToolParser]:
    """The Markdown fence distinguishes the templates."""
    marks = (BEGIN, SEP, FINISH)
    yield ToolParser(
        "deepseek_v3",
        START,
        END,
        parse_fenced,
        lambda template: START in template and "```json" in template,
        call_prefix=FENCED,
        call_format=frame_fenced,
        special_tokens=marks,
    )
    yield ToolParser(
        "deepseek_v31",
        START,
        END,
        parse_plain,
        lambda template: START in template and "```json" not in template,
        call_prefix=PLAIN,
        call_format=frame_plain,
        special_tokens=marks,
    )

"""The formats of FunctionGemma and Gemma 4: an object without quotes around keys, with a special token around strings.

<start_function_call>call:f{a:1,b:<escape>x<escape>}<end_function_call>
<|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from quire.records import ToolCall, ToolParser

_CALL = re.compile(r"\s*call:\s*([\w.-]+)\s*(?=\{)")
_BARE = re.compile(r"[^,{}\[\]]*")
_KEY = re.compile(r"\s*\"?([^:,{}\[\]\"]+?)\"?\s*:")


class Values:
    """Parses one object from a text. Methods raise ValueError."""

    def __init__(self, text: str, at: int, quote: str) -> None:
        self.text, self.at, self.quote = text, at, quote

    def value(self) -> Any:
        """The value at the current position."""
        self._skip()
        if self.text.startswith(self.quote, self.at):
            return self._string(self.quote)
        begin = self.text[self.at : self.at + 1]
        if begin == '"':
            return self._json_string()
        if begin == "{":
            return self.object()
        if begin == "[":
            return self._items("]", self.value)
        return self._bare()

    def object(self) -> dict[str, Any]:
        """The object at the current position."""
        return dict(self._items("}", self._member))

    def _member(self) -> tuple[str, Any]:
        if self.text.startswith(self.quote, self.at):
            key = self._string(self.quote)
            self._expect(":")
            return key, self.value()
        found = _KEY.match(self.text, self.at)
        if found is None:
            raise ValueError("a key is missing")
        self.at = found.end()
        return found[1], self.value()

    def _items(self, end: str, read: Callable[[], Any]) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        self._skip()
        while not self.text.startswith(end, self.at):
            if items:
                self._expect(",")
                self._skip()
            items.append(read())
            self._skip()
        self.at += 1
        return items

    def _string(self, quote: str) -> str:
        begin = self.at + len(quote)
        end = self.text.find(quote, begin)
        if end < 0:
            raise ValueError("a string does not end")
        self.at = end + len(quote)
        return self.text[begin:end]

    def _json_string(self) -> Any:
        value, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        return value

    def _bare(self) -> Any:
        found = _BARE.match(self.text, self.at)
        assert found is not None
        self.at = found.end()
        word = found[0].strip()
        if not word:
            raise ValueError("a value is missing")
        try:
            return json.loads(word)
        except ValueError:
            return word

    def _expect(self, mark: str) -> None:
        self._skip()
        if not self.text.startswith(mark, self.at):
            raise ValueError(f"{mark} is missing")
        self.at += 1

    def _skip(self) -> None:
        while self.text[self.at : self.at + 1].isspace():
            self.at += 1


def _parse_with(quote: str) -> Callable[[str, Sequence[Mapping[str, Any]]], list[ToolCall]]:
    def parse(text: str, tools: Sequence[Mapping[str, Any]]) -> list[ToolCall]:
        del tools
        found = _CALL.match(text)
        if found is None:
            raise ValueError("a call begins with call: and a name")
        values = Values(text, found.end(), quote)
        arguments = values.object()
        if text[values.at :].strip():
            raise ValueError("something follows the arguments")
        return [ToolCall(found[1], json.dumps(arguments, ensure_ascii=False))]

    return parse


def parsers() -> Iterable[ToolParser]:
    """Each family has its own special tokens."""
    for name, start, end, quote in (
        ("functiongemma", "<start_function_call>", "<end_function_call>", "<escape>"),
        ("gemma4", "<|tool_call>", "<tool_call|>", '<|"|>'),
    ):
        yield ToolParser(name, start, end, _parse_with(quote), _has(start), special_tokens=(quote,))


def _has(mark: str) -> Callable[[str], bool]:
    return lambda template: mark in template

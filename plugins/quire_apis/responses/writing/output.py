"""Turns the deltas of an answer into output items and the events of their parts.

`output_items` writes each kind of item; here is decided which item a delta belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quire.plugin import AnswerDelta, ToolCallDelta
from quire_apis.responses.items import Item, new_id
from quire_apis.responses.tools import OfferedTool
from quire_apis.responses.writing.output_items import CallItem, Event, MessageItem, OpenItem, ReasoningItem

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class OutputSettings:
    """How the items of a response are written.

    tools: what each offered function is. has_summary: reasoning is given as a summary. has_sealed: reasoning has
    `encrypted_content` too.
    """

    tools: Mapping[str, OfferedTool]
    has_summary: bool = False
    has_sealed: bool = False


class Output:
    """The output of one response. items: those that have begun, each as far as it has come."""

    def __init__(self, settings: OutputSettings) -> None:
        self.items: list[Item] = []
        self._settings = settings
        self._open: OpenItem | None = None
        self._call_index = -1
        self._blank = ""
        self._blank_logprobs: list[msgspec.Raw] = []

    def push(self, delta: AnswerDelta) -> Iterator[Event]:
        """The events of the next part of the answer."""
        if delta.reasoning:
            if not isinstance(self._open, ReasoningItem):
                yield from self._begin(ReasoningItem(self._settings.has_summary, self._settings.has_sealed))
            yield from map(self._placed, self._current(ReasoningItem).push(delta.reasoning))
        elif delta.tool_call is not None:
            yield from self._push_call(delta.tool_call)
        elif isinstance(self._open, MessageItem):
            yield from map(self._placed, self._open.push(delta.text, delta.logprobs))
        elif delta.text:
            yield from self._push_text(delta.text, delta.logprobs)

    def end(self, is_whole: bool) -> Iterator[Event]:
        """The events at the end of the answer. is_whole: it was not cut by its length."""
        if not self.items:  # an answer has at least one item
            yield from self._begin(MessageItem())
            yield from self._push_blank()
        yield from self._close("completed" if is_whole else "incomplete")

    def cut(self) -> Iterator[Event]:
        """The events of the last item after an answer that failed."""
        yield from self._close("incomplete")

    def _push_text(self, text: str, logprobs: Sequence[msgspec.Raw]) -> Iterator[Event]:
        """Text outside of a message; blanks between items begin none."""
        self._blank += text
        self._blank_logprobs += logprobs
        if self._blank.isspace():
            return
        yield from self._begin(MessageItem())
        yield from self._push_blank()

    def _push_blank(self) -> Iterator[Event]:
        """What was held back, into the message that begins."""
        text, logprobs = self._blank, self._blank_logprobs
        self._blank, self._blank_logprobs = "", []
        yield from map(self._placed, self._current(MessageItem).push(text, logprobs))

    def _push_call(self, delta: ToolCallDelta) -> Iterator[Event]:
        if delta.index != self._call_index:
            self._call_index = delta.index
            tool = self._settings.tools.get(delta.name or "") or OfferedTool("function", delta.name or "")
            yield from self._begin(CallItem(tool, delta.id or new_id("call")))
        yield from map(self._placed, self._current(CallItem).push(delta.arguments))

    def _current(self, kind: type[T]) -> T:
        assert isinstance(self._open, kind)
        return self._open

    def _begin(self, item: OpenItem) -> Iterator[Event]:
        yield from self._close("completed")
        self._open = item
        self.items.append(item.item)
        yield self._placed({"type": "response.output_item.added", "item": dict(item.item)})
        yield from map(self._placed, item.begin())

    def _close(self, status: str) -> Iterator[Event]:
        item, self._open = self._open, None
        if item is None:
            return
        yield from map(self._placed, item.end())
        item.item["status"] = status
        yield self._placed({"type": "response.output_item.done", "item": dict(item.item)})

    def _placed(self, event: Event) -> Event:
        return {**event, "output_index": len(self.items) - 1}

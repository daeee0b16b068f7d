"""The items of an output while they are written: messages, reasoning, and calls of tools.

Events have neither the index of the item nor a sequence number yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from quire_apis.responses.items import Item, new_id, sealed
from quire_apis.responses.tools import OfferedTool
from quire_apis.responses.writing.custom_input import CustomInput

Event = dict[str, Any]


class OpenItem(Protocol):
    """An item that is being written. item: as far as it has come."""

    item: Item

    def begin(self) -> Iterator[Event]:
        """The events after `response.output_item.added`."""
        ...

    def end(self) -> Iterator[Event]:
        """The events before `response.output_item.done`; the item is complete then, except for its status."""
        ...


class MessageItem:
    """A message with one text."""

    def __init__(self) -> None:
        self.item: Item = {
            "id": new_id("msg"),
            "type": "message",
            "status": "in_progress",
            "role": "assistant",
            "content": [],
        }
        self._texts: list[str] = []
        self._logprobs: list[msgspec.Raw] = []
        self._place = {"item_id": self.item["id"], "content_index": 0}

    def begin(self) -> Iterator[Event]:
        yield {"type": "response.content_part.added", **self._place, "part": self._part()}

    def push(self, text: str, logprobs: Sequence[msgspec.Raw]) -> Iterator[Event]:
        """The event of a part of the text."""
        if text or logprobs:
            self._texts.append(text)
            self._logprobs += logprobs
            yield {
                "type": "response.output_text.delta",
                **self._place,
                "delta": text,
                "logprobs": list(logprobs),
            }

    def end(self) -> Iterator[Event]:
        part = self._part()
        self.item["content"] = [part]
        yield {
            "type": "response.output_text.done",
            **self._place,
            "text": part["text"],
            "logprobs": part["logprobs"],
        }
        yield {"type": "response.content_part.done", **self._place, "part": part}

    def _part(self) -> dict[str, Any]:
        return {
            "type": "output_text",
            "text": "".join(self._texts),
            "annotations": [],
            "logprobs": list(self._logprobs),
        }


class ReasoningItem:
    """Reasoning: its text, or (has_summary) the text as a summary. has_sealed: with `encrypted_content` too."""

    def __init__(self, has_summary: bool, has_sealed: bool) -> None:
        self.item: Item = {"id": new_id("rs"), "type": "reasoning", "status": "in_progress", "summary": []}
        self._texts: list[str] = []
        self._has_sealed = has_sealed
        self._field = "summary" if has_summary else "content"
        if has_summary:
            self._part_type, self._index = "summary_text", "summary_index"
            self._part_event, self._text_event = "response.reasoning_summary_part", "response.reasoning_summary_text"
        else:
            self.item["content"] = []
            self._part_type, self._index = "reasoning_text", "content_index"
            self._part_event, self._text_event = "response.content_part", "response.reasoning_text"
        self._place = {"item_id": self.item["id"], self._index: 0}

    def begin(self) -> Iterator[Event]:
        yield {"type": f"{self._part_event}.added", **self._place, "part": self._part()}

    def push(self, text: str) -> Iterator[Event]:
        """The event of a part of the reasoning."""
        self._texts.append(text)
        yield {"type": f"{self._text_event}.delta", **self._place, "delta": text}

    def end(self) -> Iterator[Event]:
        part = self._part()
        self.item[self._field] = [part]
        if self._has_sealed:
            self.item["encrypted_content"] = sealed(part["text"])
        yield {"type": f"{self._text_event}.done", **self._place, "text": part["text"]}
        yield {"type": f"{self._part_event}.done", **self._place, "part": part}

    def _part(self) -> dict[str, Any]:
        return {"type": self._part_type, "text": "".join(self._texts)}


class CallItem:
    """A call of a function or of a custom tool."""

    def __init__(self, tool: OfferedTool, call_id: str) -> None:
        self._custom = CustomInput() if tool.kind == "custom" else None
        is_custom = self._custom is not None
        kind, prefix, self._field = (
            ("custom_tool_call", "ctc", "input")
            if is_custom
            else (
                "function_call",
                "fc",
                "arguments",
            )
        )
        self._event = "response.custom_tool_call_input" if is_custom else "response.function_call_arguments"
        self.item: Item = {
            "id": new_id(prefix),
            "type": kind,
            "status": "in_progress",
            "call_id": call_id,
            "name": tool.name,
            self._field: "",
        }
        if tool.namespace:
            self.item["namespace"] = tool.namespace
        self._parts: list[str] = []

    def begin(self) -> Iterator[Event]:
        yield from ()

    def push(self, arguments: str) -> Iterator[Event]:
        """The event of a part of the arguments."""
        yield from self._delta(self._custom.push(arguments) if self._custom else arguments)

    def end(self) -> Iterator[Event]:
        if self._custom is not None:
            yield from self._delta(self._custom.end())
        whole = "".join(self._parts)
        self.item[self._field] = whole
        done: Event = {"type": f"{self._event}.done", "item_id": self.item["id"], self._field: whole}
        if self._custom is None:
            done["name"] = self.item["name"]
        yield done

    def _delta(self, text: str) -> Iterator[Event]:
        if text:
            self._parts.append(text)
            yield {"type": f"{self._event}.delta", "item_id": self.item["id"], "delta": text}

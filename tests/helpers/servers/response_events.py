"""Reads the event streams of the Responses API: each event has the SDK's type, and all are in the published order."""

import json
from functools import cache
from typing import Any, get_args

from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

ENDS = ("completed", "incomplete", "failed")
PARTS = {
    "message": ("response.content_part", "content_index", "response.output_text", "text"),
    "content": ("response.content_part", "content_index", "response.reasoning_text", "text"),
    "summary": ("response.reasoning_summary_part", "summary_index", "response.reasoning_summary_text", "text"),
    "function_call": ("", "", "response.function_call_arguments", "arguments"),
    "custom_tool_call": ("", "", "response.custom_tool_call_input", "input"),
}
"""Of each kind of item: the events of its part, the part's index, the events of its text, the field with the text."""


@cache
def _event_types() -> dict[str, type[BaseModel]]:
    """The SDK's models of the events, by the value of `type`."""
    models = get_args(get_args(ResponseStreamEvent)[0])
    return {get_args(model.model_fields["type"].annotation)[0]: model for model in models}


def parsed(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each valid for the SDK."""
    events = []
    for block in text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _event_types()[event["type"]].model_validate(event)
        events.append(event)
    return events


class Machine:
    """Takes the events of one response in order and fails at the first that may not come next. done: the items."""

    def __init__(self, background: bool = False) -> None:
        self.done: list[dict[str, Any]] = []
        self.response: dict[str, Any] | None = None
        self._waits_for = ["response.created", *(["response.queued"] if background else []), "response.in_progress"]
        self._item: dict[str, Any] | None = None
        self._step = ""
        self._text = ""
        self._logprobs: list[Any] = []
        self._next = 0

    def take(self, event: dict[str, Any]) -> None:
        assert self.response is None, "nothing comes after the end"
        assert event["sequence_number"] == self._next
        self._next += 1
        kind = event["type"]
        if self._waits_for:
            assert kind == self._waits_for.pop(0)
            assert event["response"]["output"] == []
        elif kind.removeprefix("response.") in ENDS:
            assert self._item is None, "the last item is done"
            self.response = event["response"]
            assert self.response["status"] == kind.removeprefix("response.")
            assert self.response["output"] == self.done
        elif self._item is None:
            assert kind == "response.output_item.added"
            self._begin(event)
        else:
            self._inside(kind, event)

    def _begin(self, event: dict[str, Any]) -> None:
        self._item, self._text, self._logprobs = event["item"], "", []
        assert event["output_index"] == len(self.done)
        assert self._item["status"] == "in_progress"
        self._step = "delta" if self._kind().endswith("call") else "part"

    def _kind(self) -> str:
        assert self._item is not None
        if self._item["type"] != "reasoning":
            return str(self._item["type"])
        return "content" if "content" in self._item else "summary"

    def _inside(self, kind: str, event: dict[str, Any]) -> None:
        assert self._item is not None
        part, index, text, field = PARTS[self._kind()]
        assert event["output_index"] == len(self.done)
        if kind == "response.output_item.done":
            assert self._step == "end"
            self._end(event["item"], field)
            return
        assert event["item_id"] == self._item["id"]
        if index:
            assert event[index] == 0
        if kind == f"{text}.delta":
            assert self._step == "delta"
            self._text += event["delta"]
            self._logprobs += event.get("logprobs", ())
        elif kind == f"{text}.done":
            assert self._step == "delta"
            assert event[field] == self._text
            assert event.get("logprobs", []) == self._logprobs
            self._step = "part done" if part else "end"
        elif kind == f"{part}.added":
            assert self._step == "part"
            assert event["part"]["text"] == ""
            self._step = "delta"
        else:
            assert kind == f"{part}.done", kind
            assert self._step == "part done"
            assert event["part"]["text"] == self._text
            self._step = "end"

    def _end(self, item: dict[str, Any], field: str) -> None:
        assert self._item is not None
        kind = self._kind()
        assert (item["id"], item["type"]) == (self._item["id"], self._item["type"])
        assert item["status"] in ("completed", "incomplete")
        holder = item if kind.endswith("call") else item["summary" if kind == "summary" else "content"][0]
        assert holder[field] == self._text
        self.done.append(item)
        self._item = None


def checked(text: str, background: bool = False) -> list[dict[str, Any]]:
    """The events of a whole stream; the last has the response."""
    events = parsed(text)
    machine = Machine(background)
    for event in events:
        machine.take(event)
    assert machine.response is not None
    return events


def timeless(response: dict[str, Any]) -> dict[str, Any]:
    """A response without ids and times: what two answers of the same model have in common."""
    items = [{**item, "id": "", "call_id": ""} for item in response["output"]]
    return {**response, "id": "", "created_at": 0, "completed_at": 0, "output": items}

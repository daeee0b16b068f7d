"""Turns the items of a response into the messages of a chat."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from quire_apis.responses.items import CALL_OUTPUTS, CALLS, TEXT_PARTS, Item, unsealed

Message = dict[str, Any]
CUSTOM_INPUT = "input"
"""The one parameter of the function that a custom tool is offered as."""

SYSTEM_ROLES = ("system", "developer")


def chat_messages(
    instructions: str | None, items: Sequence[Item], call_name: Mapping[tuple[str, str], str]
) -> list[Message]:
    """The messages of a chat in which these items were said.

    call_name: the name under which a tool is offered, by namespace and name. Instructions and the system messages at
    the start become one message, because many chat templates allow one only. Reasoning, text and calls of the model
    that follow each other become one message.
    """
    writer = _ChatWriter(call_name)
    if instructions:
        writer.add({"role": "system", "content": instructions})
    for item in items:
        writer.item(item)
    return list(_with_one_system_message(writer.messages))


def without_first(items: Sequence[Item], count: int) -> list[Item]:
    """The items without the first `count` that are no system messages, and without outputs of calls that are gone."""
    kept: list[Item] = []
    for item in items:
        if count and item.get("role") not in SYSTEM_ROLES:
            count -= 1
        else:
            kept.append(item)
    calls = {item["call_id"] for item in kept if item["type"] in CALLS}
    return [item for item in kept if item["type"] not in CALL_OUTPUTS or item["call_id"] in calls]


class _ChatWriter:
    """Writes messages item by item."""

    def __init__(self, call_name: Mapping[tuple[str, str], str]) -> None:
        self.messages: list[Message] = []
        self._call_name = call_name
        self._names: dict[str, str] = {}

    def add(self, message: Message) -> None:
        self.messages.append(message)

    def item(self, item: Item) -> None:
        kind = item["type"]
        if kind == "message" and item["role"] == "assistant":
            self._say(_texts(item["content"]))
        elif kind == "message":
            role = "system" if item["role"] in SYSTEM_ROLES else "user"
            self.add({"role": role, "content": _content(item["content"])})
        elif kind == "reasoning":
            self._reason(_reasoning(item))
        elif kind in CALLS:
            self._call(item)
        elif kind in CALL_OUTPUTS:
            output = item["output"]
            content = output if isinstance(output, str) else _content(output)
            name = self._names.get(item["call_id"])
            named = {} if name is None else {"name": name}
            self.add({"role": "tool", "tool_call_id": item["call_id"], **named, "content": content})

    def _turn(self, *taken: str) -> Message:
        """The last message if it is the model's and has none of these fields yet, else a new one."""
        last = self.messages[-1] if self.messages else None
        if last is None or last["role"] != "assistant" or any(last.get(name) for name in taken):
            last = {"role": "assistant", "content": ""}
            self.add(last)
        return last

    def _reason(self, text: str) -> None:
        if text:
            self._turn("reasoning", "content", "tool_calls")["reasoning"] = text

    def _say(self, text: str) -> None:
        turn = self._turn("tool_calls")
        turn["content"] += ("\n" if turn["content"] and text else "") + text

    def _call(self, item: Item) -> None:
        name = self._call_name.get((item.get("namespace") or "", item["name"]), item["name"])
        self._names[item["call_id"]] = name
        arguments = item.get("arguments")
        if item["type"] == "custom_tool_call":
            arguments = json.dumps({CUSTOM_INPUT: item["input"]}, ensure_ascii=False)
        call = {"id": item["call_id"], "type": "function", "function": {"name": name, "arguments": arguments}}
        self._turn().setdefault("tool_calls", []).append(call)


def _with_one_system_message(messages: Iterable[Message]) -> Iterator[Message]:
    first: list[str] = []
    at_start = True
    for message in messages:
        if at_start and message["role"] == "system" and isinstance(message["content"], str):
            first.append(message["content"])
            continue
        if at_start and first:
            yield {"role": "system", "content": "\n\n".join(first)}
        at_start = False
        yield message
    if at_start and first:
        yield {"role": "system", "content": "\n\n".join(first)}


def _content(parts: Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """The content of a message: a text if it has only text."""
    if all(part["type"] in TEXT_PARTS for part in parts):
        return _texts(parts)
    return [_chat_part(part) for part in parts]


def _chat_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "input_image":
        return {"type": "image_url", "image_url": {"url": part["image_url"], "detail": part["detail"]}}
    if part["type"] == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    return {"type": "text", "text": part[TEXT_PARTS[part["type"]]]}


def _texts(parts: Iterable[Mapping[str, Any]]) -> str:
    return "\n".join(part[TEXT_PARTS[part["type"]]] for part in parts if part["type"] in TEXT_PARTS)


def _reasoning(item: Item) -> str:
    """The reasoning of an item: its text, else what was sealed, else its summary."""
    text = "\n".join(part["text"] for part in item.get("content") or ())
    return text or unsealed(item.get("encrypted_content")) or "\n".join(part["text"] for part in item["summary"])

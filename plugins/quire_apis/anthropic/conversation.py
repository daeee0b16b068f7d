"""Turns the conversations of the Messages API into those of `/v1/chat/completions`."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from quire.plugin import BadRequest
from quire_apis.anthropic.schemas import MessageBlock, MessageTurn

Message: TypeAlias = dict[str, Any]
Part: TypeAlias = dict[str, Any]
Content: TypeAlias = str | Sequence[MessageBlock]

BILLING = "x-anthropic-billing-header:"
"""How a line of Claude Code's system prompt begins that differs from request to request and says nothing to the model:
with it no two requests would share a prefix."""

HIDDEN_THINKING = "quire-thinking:"
"""How the signature of a thinking block begins whose text the client did not want; the rest is the text in base64."""


def chat_messages(system: Content | None, turns: Sequence[MessageTurn]) -> list[Message]:
    """The messages of the conversation. Raises `BadRequest` for blocks that no model here can read.

    Turns of one role that follow each other become one message; system turns within the conversation become part of
    the user's, because most chat templates accept a system message only at the start.
    """
    found = _Messages()
    texts = [] if system is None else [_without_billing(system_text(system, "system"))]
    first = 0
    while first < len(turns) and turns[first].role == "system":
        texts.append(system_text(turns[first].content, f"messages[{first}]"))
        first += 1
    if any(texts):
        found.messages.append({"role": "system", "content": "\n\n".join(filter(None, texts))})
    for number, turn in enumerate(turns[first:], first):
        where = f"messages[{number}]"
        if turn.role == "system":
            text = system_text(turn.content, where)
            found.add_user([_text(f"<system-reminder>\n{text}\n</system-reminder>")])
        elif turn.role == "user":
            found.add_user_turn(turn.content, where)
        else:
            found.add_assistant_turn(turn.content, where)
    for message in found.messages:
        message["content"] = _simplest(message["content"])
    return found.messages


def system_text(content: Content, where: str) -> str:
    """The text of a system prompt, a paragraph for each block. Raises `BadRequest` for other blocks than text."""
    if isinstance(content, str):
        return content
    texts = []
    for block in content:
        if block.type != "text":
            raise BadRequest(f"`{where}` takes blocks of type text, not {block.type!r:.40}.", where)
        text = _string(block, "text", where)
        if not text.startswith(BILLING):
            texts.append(text)
    return "\n\n".join(texts)


def _without_billing(text: str) -> str:
    return text.partition("\n")[2].lstrip("\n") if text.startswith(BILLING) else text


class _Messages:
    """The messages so far. The content of each is a list of parts."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def _last(self, role: str) -> Message:
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": []})
        return self.messages[-1]

    def add_user(self, parts: Sequence[Part]) -> None:
        if parts:
            self._last("user")["content"] += parts

    def add_result(self, call_id: str, parts: Sequence[Part]) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": list(parts)})

    def add_user_turn(self, content: Content, where: str) -> None:
        """Results of tools come first; their pictures follow as the user's, because templates show them only there."""
        if isinstance(content, str):
            self.add_user([_text(content)])
            return
        parts: list[Part] = []
        pictures: list[Part] = []
        for number, block in enumerate(content):
            at = f"{where}.content[{number}]"
            if block.type != "tool_result":
                parts += read_parts(block, at)
                continue
            result = list(_result_parts(block, at))
            pictures += [part for part in result if part["type"] != "text"]
            self.add_result(_string(block, "tool_use_id", at), [part for part in result if part["type"] == "text"])
        self.add_user([*pictures, *parts])

    def add_assistant_turn(self, content: Content, where: str) -> None:
        if isinstance(content, str):
            self._last("assistant")["content"].append(_text(content))
            return
        for number, block in enumerate(content):
            self._add_assistant_block(block, f"{where}.content[{number}]")

    def _add_assistant_block(self, block: MessageBlock, where: str) -> None:
        if block.type in ("tool_use", "server_tool_use"):
            call = {"name": _string(block, "name", where), "arguments": _json(_field(block, "input", where))}
            calls = self._last("assistant").setdefault("tool_calls", [])
            calls.append({"id": _string(block, "id", where), "type": "function", "function": call})
        elif block.type.endswith("_tool_result"):  # of a tool that ran at another server
            self.add_result(_string(block, "tool_use_id", where), [_text(_json(_field(block, "content", where)))])
        elif block.type == "thinking":
            message = self._last("assistant")
            message["reasoning"] = message.get("reasoning", "") + _thinking(block, where)
        elif block.type != "redacted_thinking":
            self._last("assistant")["content"] += read_parts(block, where)


def read_parts(block: MessageBlock, where: str) -> Iterator[Part]:
    """The parts of a text, picture, document or search result. Raises `BadRequest` for other blocks."""
    if block.type == "text":
        yield _text(_string(block, "text", where))
    elif block.type == "image":
        yield {"type": "image_url", "image_url": {"url": _picture_url(block, where)}}
    elif block.type == "document":
        yield from _document_parts(block, where)
    elif block.type == "search_result":
        texts = [_string(part, "text", f"{where}.content") for part in _blocks(block, where)]
        head = f"{_string(block, 'title', where)} ({_string(block, 'source', where)})"
        yield _text("\n".join([head, *texts]))
    elif block.type == "tool_reference":
        yield _text(f"The tool {_string(block, 'tool_name', where)} is available.")
    else:
        raise BadRequest(f"`{where}` is of type {block.type!r:.40}, which this server does not read.", where)


def _result_parts(block: MessageBlock, where: str) -> Iterator[Part]:
    """The parts of a tool's result; the text of one that failed begins with "Error"."""
    content = (block.model_extra or {}).get("content")
    parts = [_text(content)] if isinstance(content, str) else []
    if content is not None and not isinstance(content, str):
        parts = [part for one in _blocks(block, where) for part in read_parts(one, f"{where}.content")]
    if (block.model_extra or {}).get("is_error"):
        shown = next((part["text"] for part in parts if part["type"] == "text"), "")
        if not shown.lower().startswith(("error", "<tool_use_error>")):
            yield _text("Error:")
    yield from parts


def _document_parts(block: MessageBlock, where: str) -> Iterator[Part]:
    source = _field(block, "source", where)
    kind = source.get("type") if isinstance(source, dict) else None
    heads = [_string(block, name, where) for name in ("title", "context") if getattr(block, name, None) is not None]
    if heads:
        yield _text("\n".join(heads))
    if kind == "text" and isinstance(source.get("data"), str):
        yield _text(source["data"])
    elif kind == "content" and isinstance(source.get("content"), str):
        yield _text(source["content"])
    elif kind == "content":
        inner = MessageBlock(type="document", content=source.get("content"))  # type: ignore[call-arg]
        for one in _blocks(inner, f"{where}.source"):
            yield from read_parts(one, f"{where}.source.content")
    else:
        raise BadRequest(
            f"`{where}.source` must be of type text or content: this server reads no {kind!r:.40} documents; send"
            " the text or pictures of the pages.",
            where,
        )


def _picture_url(block: MessageBlock, where: str) -> str:
    source = _field(block, "source", where)
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "base64" and isinstance(source.get("data"), str):
        return f"data:{source.get('media_type') or ''};base64,{source['data']}"
    if kind == "url" and isinstance(source.get("url"), str):
        return str(source["url"])
    raise BadRequest(f"`{where}.source` must be of type base64, with `data`, or url, with `url`.", where)


def _thinking(block: MessageBlock, where: str) -> str:
    text, signature = _string(block, "thinking", where), getattr(block, "signature", None)
    if text or not isinstance(signature, str) or not signature.startswith(HIDDEN_THINKING):
        return text
    try:
        return base64.b64decode(signature.removeprefix(HIDDEN_THINKING), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise BadRequest(f"`{where}.signature` is not one of this server.", where) from None


def _blocks(block: MessageBlock, where: str) -> list[MessageBlock]:
    """The blocks in `content`. Raises `BadRequest` for anything else."""
    content = _field(block, "content", where)
    listed: list[Any] = content if isinstance(content, list) else [None]
    if not all(isinstance(one, dict) and isinstance(one.get("type"), str) for one in listed):
        raise BadRequest(f"`{where}.content` must be a string or a list of blocks with a type.", where)
    return [MessageBlock(**one) for one in listed]


def _field(block: MessageBlock, name: str, where: str) -> Any:
    value = (block.model_extra or {}).get(name)
    if value is None:
        raise BadRequest(f"`{where}` of type {block.type!r:.40} needs `{name}`.", where)
    return value


def _string(block: MessageBlock, name: str, where: str) -> str:
    value = _field(block, name, where)
    if not isinstance(value, str):
        raise BadRequest(f"`{where}.{name}` must be a string.", where)
    return value


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _simplest(content: Any) -> Any:
    """Parts of text only as one string: some templates read nothing else."""
    if isinstance(content, list) and all(part["type"] == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return content

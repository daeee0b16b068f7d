"""Writes answers in the shape of Cohere's chat API: the events of a stream, and the whole answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from quire.plugin import AnswerDelta, AnswerUsage, ToolCallDelta
from quire_apis.collected_answer import CollectedAnswer

Event: TypeAlias = dict[str, Any]
FINISH_REASONS = {"stop": "COMPLETE", "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}
TOKEN_PREFIX = "token_id:"
"""How a token is written where its id was asked for."""


class ChatWriter:
    """Writes one answer. Each of its texts, pieces of reasoning and calls has an index."""

    def __init__(self, answer_id: str) -> None:
        self._id = answer_id
        self._answer = CollectedAnswer()
        self._logprobs: list[dict[str, Any]] = []
        self._content: list[dict[str, Any]] = []
        self._num_calls = 0
        self._open: str | None = None  # "text", "thinking" or "call"

    def start(self) -> Event:
        """The event before the first content."""
        message = {"role": "assistant", "content": [], "tool_plan": "", "tool_calls": [], "citations": []}
        return {"type": "message-start", "id": self._id, "delta": {"message": message}}

    def push(self, delta: AnswerDelta) -> Iterator[Event]:
        """The events of the next part."""
        self._answer.take(delta)
        logprobs = _logprobs(delta)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        if delta.reasoning:
            yield from self._push_content("thinking", delta.reasoning, None)
        if delta.text:
            yield from self._push_content("text", delta.text, logprobs)
        if delta.tool_call is not None:
            yield from self._push_call(delta.tool_call)
        if delta.finish_reason is not None:
            yield from self._close()

    def end(self, usage: AnswerUsage) -> Event:
        """The event after the last content, with usage and the reason of the end."""
        delta = {"finish_reason": self._finish_reason(), "usage": _usage(usage)}
        return {"type": "message-end", "id": self._id, "delta": delta}

    def whole(self, usage: AnswerUsage) -> dict[str, Any]:
        """All in one object."""
        message: dict[str, Any] = {"role": "assistant"}
        if self._content:
            message["content"] = self._content
        if self._answer.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in self._answer.calls
            ]
        found = {"id": self._id, "finish_reason": self._finish_reason(), "message": message, "usage": _usage(usage)}
        return {**found, "logprobs": self._logprobs} if self._logprobs else found

    def _push_content(self, kind: str, text: str, logprobs: dict[str, Any] | None) -> Iterator[Event]:
        if self._open != kind:
            yield from self._close()
            self._open = kind
            self._content.append({"type": kind, kind: ""})
            yield self._event("content-start", {"content": {"type": kind, kind: ""}})
        self._content[-1][kind] += text
        event = self._event("content-delta", {"content": {kind: text}})
        yield event if logprobs is None else {**event, "logprobs": logprobs}

    def _push_call(self, part: ToolCallDelta) -> Iterator[Event]:
        if part.id is not None:
            yield from self._close()
            self._open = "call"
            self._num_calls += 1
            call = {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}}
            yield self._event("tool-call-start", {"tool_calls": call})
        if part.arguments:
            yield self._event("tool-call-delta", {"tool_calls": {"function": {"arguments": part.arguments}}})

    def _close(self) -> Iterator[Event]:
        if self._open is not None:
            kind = "tool-call-end" if self._open == "call" else "content-end"
            yield {"type": kind, "index": self._index()}
        self._open = None

    def _event(self, kind: str, message: dict[str, Any]) -> Event:
        return {"type": kind, "index": self._index(), "delta": {"message": message}}

    def _index(self) -> int:
        return (self._num_calls if self._open == "call" else len(self._content)) - 1

    def _finish_reason(self) -> str:
        answer = self._answer
        if answer.finish_reason == "stop" and answer.calls:  # the request named the tool
            return "TOOL_CALL"
        if answer.finish_reason == "stop" and isinstance(answer.stop_reason, str):
            return "STOP_SEQUENCE"
        return FINISH_REASONS.get(answer.finish_reason or "", "ERROR")


def _logprobs(delta: AnswerDelta) -> dict[str, Any] | None:
    """Ids and log-probabilities of the tokens of a part, None if they were not asked for."""
    entries: Sequence[dict[str, Any]] = [msgspec.json.decode(raw) for raw in delta.logprobs]
    if not entries:
        return None
    ids = [int(entry["token"].removeprefix(TOKEN_PREFIX)) for entry in entries]
    return {"text": delta.text, "token_ids": ids, "logprobs": [entry["logprob"] for entry in entries]}


def _usage(usage: AnswerUsage) -> dict[str, Any]:
    tokens = {"input_tokens": usage.prompt, "output_tokens": usage.output}
    return {"billed_units": tokens, "tokens": tokens, "cached_tokens": usage.cached}

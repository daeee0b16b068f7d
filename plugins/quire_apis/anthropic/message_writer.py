"""Writes an answer as a message of the Messages API: the events of its stream, and the whole message.

The events are `message_start`, then for each block of content `content_block_start`, `content_block_delta`s and
`content_block_stop`, and in the end `message_delta` and `message_stop`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from typing import Any, TypeAlias

from quire.plugin import AnswerDelta, AnswerUsage, ToolCallDelta
from quire_apis.anthropic.conversation import HIDDEN_THINKING
from quire_apis.collected_answer import parsed_arguments

Event: TypeAlias = dict[str, Any]


def usage_object(usage: AnswerUsage) -> dict[str, Any]:
    """The usage object: tokens that the prefix cache had are not part of `input_tokens`."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


class MessageWriter:
    """Writes one message.

    hides_thinking: thinking blocks have a signature but no text. fills_context: the answer may be as long as the
    context, so that one that is cut there ended for that reason.
    """

    def __init__(self, message_id: str, model: str, hides_thinking: bool = False, fills_context: bool = False) -> None:
        self._id, self._model = message_id, model
        self._hides_thinking, self._fills_context = hides_thinking, fills_context
        self.content: list[dict[str, Any]] = []
        self._is_open = False
        self._text = ""  # of the open block, or the arguments of its call
        self._spaces = ""  # that may begin a block of text
        self._stop: tuple[str, str | None] = ("end_turn", None)

    def cut(self) -> None:
        """Let the message end without an answer, for a request that only fills the prefix cache."""
        self._stop = ("max_tokens", None)

    def start(self, usage: AnswerUsage) -> Iterator[Event]:
        """The events before the first block."""
        yield {"type": "message_start", "message": {**self.message(usage), "stop_reason": None, "stop_sequence": None}}
        yield {"type": "ping"}

    def push(self, delta: AnswerDelta) -> Iterator[Event]:
        """The events of the next part of the answer."""
        if delta.reasoning:
            yield from self._push_thinking(delta.reasoning)
        if delta.text:
            yield from self._push_text(delta.text)
        if delta.tool_call is not None:
            yield from self._push_call(delta.tool_call)
        if delta.finish_reason is not None:
            yield from self._close()
            self._stop = self._stop_of(delta)

    def end(self, usage: AnswerUsage) -> Iterator[Event]:
        """The events after the last block."""
        yield from self._close()
        reason, sequence = self._stop
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield {"type": "message_delta", "delta": delta, "usage": usage_object(usage)}
        yield {"type": "message_stop"}

    def message(self, usage: AnswerUsage) -> dict[str, Any]:
        """The message so far."""
        reason, sequence = self._stop
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list(self.content),
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": usage_object(usage),
        }

    def _push_thinking(self, text: str) -> Iterator[Event]:
        if not self._is_in("thinking"):
            yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
        self._text += text
        if not self._hides_thinking:
            yield self._delta({"type": "thinking_delta", "thinking": text})

    def _push_text(self, text: str) -> Iterator[Event]:
        """Spaces begin no block: models write line breaks before and between calls."""
        if not self._is_in("text"):
            self._spaces += text
            if not self._spaces.strip():
                return
            text = self._spaces
            yield from self._open({"type": "text", "text": ""})
        self._text += text
        yield self._delta({"type": "text_delta", "text": text})

    def _push_call(self, part: ToolCallDelta) -> Iterator[Event]:
        if part.id is not None:
            yield from self._open({"type": "tool_use", "id": part.id, "name": part.name, "input": {}})
        self._text += part.arguments
        if part.arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": part.arguments})

    def _is_in(self, kind: str) -> bool:
        return self._is_open and self.content[-1]["type"] == kind

    def _open(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self._close()
        self.content.append(block)
        self._is_open, self._text, self._spaces = True, "", ""
        yield {"type": "content_block_start", "index": len(self.content) - 1, "content_block": dict(block)}

    def _close(self) -> Iterator[Event]:
        """End the open block and complete it in `content`."""
        if not self._is_open:
            return
        block = self.content[-1]
        if block["type"] == "text":
            block["text"] = self._text
        elif block["type"] == "tool_use":
            block["input"] = parsed_arguments(self._text)
        else:
            block["thinking"] = "" if self._hides_thinking else self._text
            block["signature"] = _signature(self._text, self._hides_thinking)
            yield self._delta({"type": "signature_delta", "signature": block["signature"]})
        self._is_open = False
        yield {"type": "content_block_stop", "index": len(self.content) - 1}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.content) - 1, "delta": delta}

    def _stop_of(self, delta: AnswerDelta) -> tuple[str, str | None]:
        """The stop reason, and the stop sequence if the answer ended there."""
        if delta.finish_reason in ("length", "abort"):
            return ("model_context_window_exceeded" if self._fills_context else "max_tokens"), None
        if isinstance(delta.stop_reason, str):
            return "stop_sequence", delta.stop_reason
        has_calls = any(block["type"] == "tool_use" for block in self.content)
        return ("tool_use" if has_calls else "end_turn"), None


def _signature(thinking: str, holds_text: bool) -> str:
    """A digest of the text, or the text itself where the client does not get it otherwise."""
    if holds_text:
        return HIDDEN_THINKING + base64.b64encode(thinking.encode()).decode()
    return hashlib.sha256(thinking.encode()).hexdigest()

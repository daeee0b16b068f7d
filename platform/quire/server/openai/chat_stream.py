"""Encodes the stream of `/v1/chat/completions`: the chunks of the next message."""

from __future__ import annotations

from typing import Any

from quire.server.openai import format as wire
from quire.server.openai.chat import ChatCall, base_fields, requested_logprobs, usage
from quire.server.openai.chat_parts import ChatParts
from quire.server.openai.chat_tools import call_delta
from quire.server.service.service import system_fingerprint
from quire.text.outputs.outputs import TextDelta
from quire.text.parsing.reasoning import ReasoningDelta
from quire.text.parsing.tool_calls import ToolDelta


class ChatStream:
    """Encodes text deltas: for each choice a chunk with the role, then text or tool calls, then the finish reason."""

    def __init__(self, call: ChatCall) -> None:
        self._call, self.job = call, call.job
        self._chunks = wire.ChunkEncoder(base_fields(call, "chat.completion.chunk"))
        self._begun: set[int] = set()
        self._parts = ChatParts(call)
        self._usage = wire.StreamUsage.from_options(call.fields.stream_options, call.service.config)
        self._plain = call.parser is None and not (call.fields.return_token_ids or self._usage.always)
        self._templates: dict[int, wire.TextEventTemplate] = {}

    def final_event(self) -> bytes:
        """The event with the usage, b"" if the client did not ask for it."""
        if not self._usage.at_end:
            return b""
        cached = self._call.job.collectors[0].num_cached_tokens or 0
        return self._chunks.final(usage(self._call, cached), system_fingerprint=system_fingerprint(self._call.served))

    def events_for(self, _: int, delta: TextDelta) -> bytes:
        """The events for a text delta, or b""."""
        template = self._templates.get(delta.index)
        if template is not None and delta.text and not delta.logprobs and delta.finish_reason is None:
            return template.event(delta.text)
        data = b""
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            data = self._first_chunk(delta.index)
            if self._plain:
                event = self._chunk({"content": wire.PLACEHOLDER}, TextDelta(delta.index))
                self._templates[delta.index] = wire.TextEventTemplate(event)
        for part, rest in self._parts.split(delta):
            data += self._chunk(_content(part), rest)
        return data

    def _first_chunk(self, index: int) -> bytes:
        call = self._call
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"role": call.rendered.role, "content": call.rendered.echo},
            "logprobs": None,
            "finish_reason": None,
        }
        more: dict[str, Any] = {}
        if call.fields.return_token_ids:
            more["prompt_token_ids"] = call.job.requests[0].prompt.token_ids
        return self._chunks.choice(choice, self._usage_so_far(), **more)

    def _chunk(self, content: dict[str, Any], delta: TextDelta) -> bytes:
        logprobs = requested_logprobs(self._call, delta.token_ids, delta.logprobs) if delta.logprobs else None
        choice: dict[str, Any] = {
            "index": delta.index,
            "delta": content,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason:
            choice["stop_reason"] = delta.stop_reason
        if self._call.fields.return_token_ids:
            choice["token_ids"] = delta.token_ids
        return self._chunks.choice(choice, self._usage_so_far())

    def _usage_so_far(self) -> dict[str, Any] | None:
        return usage(self._call) if self._usage.always else None


def _content(part: str | ReasoningDelta | ToolDelta | None) -> dict[str, Any]:
    """The `delta` object of a chunk."""
    if isinstance(part, str):
        return {"content": part}
    if isinstance(part, ReasoningDelta):
        return {"reasoning": part.text}
    if isinstance(part, ToolDelta):
        return {"tool_calls": [call_delta(part)]}
    return {}

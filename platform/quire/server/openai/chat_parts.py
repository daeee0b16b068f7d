"""Splits the text deltas of a chat answer into parts: text, reasoning, tool calls, the end of a choice."""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec.structs import replace

from quire.server.openai.chat import ChatCall
from quire.text.outputs.outputs import TextDelta
from quire.text.parsing.output_parser import ChannelOutputParser, StreamingOutputParser
from quire.text.parsing.reasoning import ReasoningDelta
from quire.text.parsing.tool_calls import ToolDelta

ChatPart: TypeAlias = tuple[str | ReasoningDelta | ToolDelta | None, TextDelta]
"""What a part says, None: nothing; and a text delta with the other fields of the part: index, tokens, the end."""


class ChatParts:
    """Splits the text deltas of one call. Parts that the request excludes are left out."""

    def __init__(self, call: ChatCall) -> None:
        self._call = call
        self._parsers: dict[int, StreamingOutputParser | ChannelOutputParser] = {}

    def split(self, delta: TextDelta) -> list[ChatPart]:
        """The parts of the next delta of a choice, in order."""
        if self._call.parser is not None:
            if delta.index not in self._parsers:
                self._parsers[delta.index] = self._call.parser.stream()
            return self._parsed(delta, self._parsers[delta.index])
        if delta.text:
            return [(delta.text, delta)]
        return [(None if delta.finish_reason else "", delta)] if self._has_more_than_text(delta) else []

    def _has_more_than_text(self, delta: TextDelta) -> bool:
        shows_ids = self._call.fields.return_token_ids and delta.token_ids
        return bool(delta.finish_reason or delta.logprobs or shows_ids)

    def _parsed(self, delta: TextDelta, parser: StreamingOutputParser | ChannelOutputParser) -> list[ChatPart]:
        found = parser.push(delta.text)
        if delta.finish_reason:
            found += parser.flush(truncated=delta.finish_reason == "length")
        found = [part for part in found if self._is_wanted(part)]
        if not found and not self._has_more_than_text(delta):
            return []
        bare = TextDelta(index=delta.index)
        rest = replace(delta, finish_reason=None, stop_reason=None)
        parts: list[ChatPart] = [(found[0] if found else None, rest), *((part, bare) for part in found[1:])]
        if delta.finish_reason:
            parts.append((None, self._end(bare, delta, parser.num_calls)))
        return parts

    def _end(self, bare: TextDelta, delta: TextDelta, num_calls: int) -> TextDelta:
        call = self._call
        reason: Any = delta.finish_reason
        if call.tools:
            call.service.metrics.count_tool_parsing(call.served.name, streamed=True, found=num_calls > 0)
            reason = call.tools.finish_reason(delta.finish_reason, num_calls)
        return replace(bare, finish_reason=reason, stop_reason=delta.stop_reason)

    def _is_wanted(self, part: str | ReasoningDelta | ToolDelta) -> bool:
        if isinstance(part, ReasoningDelta):
            return self._call.fields.include_reasoning
        max_calls = self._call.tools.max_calls if self._call.tools else None
        return not isinstance(part, ToolDelta) or max_calls is None or part.index < max_calls

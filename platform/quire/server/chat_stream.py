"""The stream of `/v1/chat/completions`: chunks of the next message as it is written."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from quire.server import wire
from quire.server.chat import Call, common, count_tokens, logprobs_of
from quire.server.chat_tools import call_delta
from quire.server.service import fingerprint
from quire.text.answers import AnswerStream, MessageStream
from quire.text.outputs import Piece
from quire.text.reasoning import Thought
from quire.text.tools import ToolDelta


class ChatStream:
    """Turns pieces into events: per choice a chunk with the role, then text or calls, then why it ended."""

    def __init__(self, call: Call) -> None:
        self._call, self.job = call, call.job
        self._chunks = wire.Chunks(common(call, "chat.completion.chunk"))
        self._begun: set[int] = set()
        self._answers: dict[int, AnswerStream | MessageStream] = {}
        self._usage = wire.UsageWanted.of(call.fields.stream_options, call.service.config)
        self._plain = call.reader is None and not (call.fields.return_token_ids or self._usage.always)
        self._texts: dict[int, wire.TextEvents] = {}

    def last(self) -> bytes:
        """The event with the usage, if it is wanted."""
        if not self._usage.at_end:
            return b""
        cached = self._call.job.collectors[0].num_cached_tokens or 0
        usage = count_tokens(self._call, cached)
        return self._chunks.final(usage, system_fingerprint=fingerprint(self._call.served))

    def piece(self, _: int, piece: Piece) -> bytes:
        """The events for a piece, or nothing."""
        events = self._texts.get(piece.index)
        if events is not None and piece.text and not piece.logprobs and piece.finish_reason is None:
            return events.event(piece.text)
        data = b""
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            data = self._begin(piece.index)
            if self._plain:
                whole = self._chunk({"content": wire.HOLE}, Piece(piece.index))
                self._texts[piece.index] = wire.TextEvents(whole)
        for delta, part in self._deltas(piece):
            data += self._chunk(delta, part)
        return data

    def _begin(self, index: int) -> bytes:
        call = self._call
        if call.reader is not None:
            self._answers[index] = call.reader.stream()
        choice: dict[str, Any] = {
            "index": index,
            "delta": {"role": call.rendered.role, "content": call.rendered.lead},
            "logprobs": None,
            "finish_reason": None,
        }
        more: dict[str, Any] = {}
        if call.fields.return_token_ids:
            more["prompt_token_ids"] = call.job.requests[0].prompt.token_ids
        return self._chunks.choice(choice, self._counted(), **more)

    def _deltas(self, piece: Piece) -> list[tuple[dict[str, Any], Piece]]:
        """What the chunks for a piece say, each with what else of the piece goes with it."""
        answer = self._answers.get(piece.index)
        if answer is not None:
            return self._with_parts(piece, answer)
        if piece.text:
            return [({"content": piece.text}, piece)]
        wanted = piece.finish_reason or piece.logprobs or (self._call.fields.return_token_ids and piece.token_ids)
        return [({} if piece.finish_reason else {"content": ""}, piece)] if wanted else []

    def _with_parts(self, piece: Piece, answer: AnswerStream | MessageStream) -> list[tuple[dict[str, Any], Piece]]:
        parts = answer.push(piece.text)
        if piece.finish_reason:
            parts += answer.flush(cut=piece.finish_reason == "length")
        deltas = [delta for delta in map(self._delta, parts) if delta is not None]
        shows = piece.finish_reason or piece.logprobs or (self._call.fields.return_token_ids and piece.token_ids)
        if not deltas and not shows:
            return []
        bare = Piece(index=piece.index)
        made = [(delta, bare) for delta in deltas or [{}]]
        made[0] = (made[0][0], replace(piece, finish_reason=None, stop_reason=None))
        if piece.finish_reason:
            tools = self._call.tools
            if tools:
                self._call.service.metrics.sought_calls(
                    self._call.served.name, streamed=True, found=answer.num_calls > 0
                )
            reason: Any = tools.finish(piece.finish_reason, answer.num_calls) if tools else piece.finish_reason
            made.append(({}, replace(bare, finish_reason=reason, stop_reason=piece.stop_reason)))
        return made

    def _delta(self, part: str | Thought | ToolDelta) -> dict[str, Any] | None:
        """What a chunk says of a part; None if the client is not to see it."""
        if isinstance(part, str):
            return {"content": part}
        if isinstance(part, Thought):
            return {"reasoning": part.text} if self._call.fields.include_reasoning else None
        most = self._call.tools.at_most if self._call.tools else None
        return {"tool_calls": [call_delta(part)]} if most is None or part.index < most else None

    def _chunk(self, delta: dict[str, Any], piece: Piece) -> bytes:
        choice: dict[str, Any] = {
            "index": piece.index,
            "delta": delta,
            "logprobs": logprobs_of(self._call, piece.token_ids, piece.logprobs) if piece.logprobs else None,
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason:
            choice["stop_reason"] = piece.stop_reason
        if self._call.fields.return_token_ids:
            choice["token_ids"] = piece.token_ids
        return self._chunks.choice(choice, self._counted())

    def _counted(self) -> dict[str, Any] | None:
        return count_tokens(self._call) if self._usage.always else None

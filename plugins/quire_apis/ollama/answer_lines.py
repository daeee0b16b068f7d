"""Writes answers as Ollama does: a JSON object per line, or one object. Times are in nanoseconds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from quire.plugin import AnswerDelta, AnswerUsage
from quire_apis.collected_answer import CollectedAnswer, CollectedCall


class AnswerWriter:
    """Writes one answer. is_chat: of `/api/chat`, whose lines have messages. begun_ns: when the request came."""

    def __init__(self, model: str, is_chat: bool, begun_ns: int) -> None:
        self._model, self._is_chat = model, is_chat
        self._begun, self._prepared = begun_ns, time.perf_counter_ns()
        self._first = 0
        self._answer = CollectedAnswer()
        self._num_written_calls = 0

    def push(self, delta: AnswerDelta) -> Iterator[dict[str, Any]]:
        """The lines of the next part. Calls are written when they are complete."""
        self.take(delta)
        calls = self._answer.finished_calls(self._num_written_calls)
        self._num_written_calls += len(calls)
        if delta.text or delta.reasoning or delta.logprobs or calls:
            yield self._line(delta.text, delta.reasoning, calls, delta.logprobs)

    def take(self, delta: AnswerDelta) -> None:
        """Note the next part of an answer that is sent whole."""
        self._first = self._first or time.perf_counter_ns()
        self._answer.take(delta)

    def last(self, usage: AnswerUsage) -> dict[str, Any]:
        """The last line of a stream."""
        return {**self._line("", "", (), ()), **self._end(usage)}

    def whole(self, usage: AnswerUsage) -> dict[str, Any]:
        """All in one object."""
        answer = self._answer
        return {**self._line(answer.text, answer.reasoning, answer.calls, answer.logprobs), **self._end(usage)}

    def _line(
        self, text: str, thinking: str, calls: Sequence[CollectedCall], logprobs: Sequence[msgspec.Raw]
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if self._is_chat:
            if calls:
                said["tool_calls"] = [
                    {"id": call.id, "function": {"name": call.name, "arguments": call.values}} for call in calls
                ]
            said = {"message": {"role": "assistant", "content": text, **said}}
        else:
            said = {"response": text, **said}
        if logprobs:
            said["logprobs"] = list(logprobs)
        return {**head(self._model), **said, "done": False}

    def _end(self, usage: AnswerUsage) -> dict[str, Any]:
        now = time.perf_counter_ns()
        first = self._first or now
        return {
            "done": True,
            "done_reason": "stop" if self._answer.finish_reason in ("stop", "tool_calls") else "length",
            "total_duration": now - self._begun,
            "load_duration": self._prepared - self._begun,
            "prompt_eval_count": usage.prompt,
            "prompt_eval_duration": first - self._prepared,
            "eval_count": usage.output,
            "eval_duration": now - first,
        }


def head(model: str) -> dict[str, Any]:
    """The fields with which every answer begins."""
    return {"model": model, "created_at": now_text()}


def now_text() -> str:
    """The time in the form of RFC 3339."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


def encoded_line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"

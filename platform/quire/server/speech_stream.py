"""The stream of `/v1/audio/…`: pieces of text in the order in which they were said, in OpenAI's shapes.

All windows of a recording are heard at the same time. What comes of later ones waits for those before.
"""

from __future__ import annotations

from typing import Any

from quire.server.job import Job
from quire.server.speech import Call, task_of, windows_job
from quire.server.sse import event
from quire.text.outputs import Piece
from quire.text.transcript import Flow


async def prepare(call: Call) -> SpeechStream:
    """The stream of a call, when its language is known; nothing runs yet."""
    return SpeechStream(call, await windows_job(call, await task_of(call)))


class SpeechStream:
    """Turns pieces of all windows into events: one for each piece of text, then the whole."""

    def __init__(self, call: Call, job: Job) -> None:
        self.job = job
        self._flow = Flow()
        self._said: list[str] = []
        self._waiting: list[list[str]] = [[] for _ in job.requests]
        self._ended = [False] * len(job.requests)
        self._now = 0
        self._usage_at_end = call.fields.stream_include_usage is not False
        self._usage_always = call.fields.stream_continuous_usage_stats

    def piece(self, number: int, piece: Piece) -> bytes:
        """The event for what a piece of window `number` adds; b"" while an earlier window is not done."""
        self._waiting[number].append(piece.text)
        self._ended[number] = self._ended[number] or piece.finish_reason is not None
        delta = "".join(self._ready())
        if not delta:
            return b""
        self._said.append(delta)
        value: dict[str, Any] = {"type": "transcript.text.delta", "delta": delta}
        if self._usage_always:
            value["usage"] = self._usage()
        return event(value)

    def _ready(self) -> list[str]:
        """What can be said now: of the window whose turn it is and, if that is done, of the next."""
        found: list[str] = []
        while self._now < len(self._waiting):
            found += map(self._flow.push, self._waiting[self._now])
            self._waiting[self._now].clear()
            if not self._ended[self._now]:
                break
            self._now += 1
            self._flow.border()
        return found

    def last(self) -> bytes:
        """The event with the whole text."""
        value: dict[str, Any] = {"type": "transcript.text.done", "text": "".join(self._said)}
        if self._usage_at_end:
            value["usage"] = self._usage()
        return event(value)

    def _usage(self) -> dict[str, Any]:
        prompts = [request.prompt for request in self.job.requests]
        num_read = sum(len(prompt.token_ids) for prompt in prompts)
        num_heard = sum(medium.length for prompt in prompts for medium in prompt.media)
        num_written = sum(collector.num_output_tokens for collector in self.job.collectors)
        return {
            "type": "tokens",
            "input_tokens": num_read,
            "input_token_details": {"audio_tokens": num_heard, "text_tokens": num_read - num_heard},
            "output_tokens": num_written,
            "total_tokens": num_read + num_written,
        }

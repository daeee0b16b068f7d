"""Encodes the stream of `/v1/audio/…`: text in the order of the recording, in OpenAI's shapes.

All windows of a recording run at the same time; the text of a later window waits until the earlier ones are complete.
"""

from __future__ import annotations

from typing import Any

from quire.server.audio.transcription import TranscriptionCall, make_windows_job, resolve_task
from quire.server.http.sse import event
from quire.server.jobs.generation import GenerationJob
from quire.text.outputs.outputs import TextDelta
from quire.text.speech.transcript import TextJoiner


async def prepare_stream(call: TranscriptionCall) -> SpeechStream:
    """The encoder of a call, after its language is known; no window runs yet."""
    return SpeechStream(call, await make_windows_job(call, await resolve_task(call)))


class WindowTexts:
    """Puts the text deltas of all windows in the order of the recording; deltas of later windows wait."""

    def __init__(self, num_windows: int) -> None:
        self._joiner = TextJoiner()
        self._waiting: list[list[str]] = [[] for _ in range(num_windows)]
        self._ended = [False] * num_windows
        self._current = 0

    def push(self, number: int, delta: TextDelta) -> str:
        """The text that can be sent after a delta of window `number`; empty if there is none."""
        self._waiting[number].append(delta.text)
        self._ended[number] = self._ended[number] or delta.finish_reason is not None
        found: list[str] = []
        while self._current < len(self._waiting):
            found += map(self._joiner.push, self._waiting[self._current])
            self._waiting[self._current].clear()
            if not self._ended[self._current]:
                break
            self._current += 1
            self._joiner.next_window()
        return "".join(found)


class SpeechStream:
    """Encodes the text deltas of all windows: an event for each addition to the text, then one with the whole text."""

    def __init__(self, call: TranscriptionCall, job: GenerationJob) -> None:
        self.job = job
        self._texts = WindowTexts(len(job.requests))
        self._sent: list[str] = []
        self._usage_at_end = call.fields.stream_include_usage is not False
        self._usage_always = call.fields.stream_continuous_usage_stats

    def events_for(self, number: int, delta: TextDelta) -> bytes:
        """The event for the text that can be sent now, b"" if there is none. number: of the window."""
        text = self._texts.push(number, delta)
        if not text:
            return b""
        self._sent.append(text)
        value: dict[str, Any] = {"type": "transcript.text.delta", "delta": text}
        if self._usage_always:
            value["usage"] = self._usage()
        return event(value)

    def final_event(self) -> bytes:
        """The event with the whole text and the usage."""
        value: dict[str, Any] = {"type": "transcript.text.done", "text": "".join(self._sent)}
        if self._usage_at_end:
            value["usage"] = self._usage()
        return event(value)

    def _usage(self) -> dict[str, Any]:
        prompts = [request.prompt for request in self.job.requests]
        num_prompt = sum(len(prompt.token_ids) for prompt in prompts)
        num_audio = sum(medium.length for prompt in prompts for medium in prompt.media)
        num_output = sum(collector.num_output_tokens for collector in self.job.collectors)
        return {
            "type": "tokens",
            "input_tokens": num_prompt,
            "input_token_details": {"audio_tokens": num_audio, "text_tokens": num_prompt - num_audio},
            "output_tokens": num_output,
            "total_tokens": num_prompt + num_output,
        }

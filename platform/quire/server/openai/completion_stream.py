"""Encodes the stream of `/v1/completions`: the chunks of each text."""

from __future__ import annotations

from typing import Any

from quire.server.openai import format as wire
from quire.server.openai.completions import CompletionCall, base_fields, echo_of, usage
from quire.server.openai.logprobs import CompletionLogprobLists, EchoedPrompt
from quire.server.service.service import system_fingerprint
from quire.text.outputs.outputs import TextDelta


class CompletionStream:
    """Encodes text deltas as events."""

    def __init__(self, call: CompletionCall) -> None:
        self._call, self.job = call, call.job
        self._chunks = wire.ChunkEncoder(base_fields(call))
        self._echoes: dict[int, EchoedPrompt] = {}
        self._begun: set[tuple[int, int]] = set()
        self._usage = wire.StreamUsage.from_options(call.fields.stream_options, call.service.config)
        fields = call.fields
        self._plain = not (
            fields.echo
            or call.prompt_only
            or fields.logprobs is not None
            or fields.return_token_ids
            or self._usage.always
        )
        self._templates: dict[tuple[int, int], wire.TextEventTemplate] = {}

    def final_event(self) -> bytes:
        """The event with the usage, b"" if the client did not ask for it."""
        if not self._usage.at_end:
            return b""
        cached = sum(collector.num_cached_tokens or 0 for collector in self._call.job.collectors)
        return self._chunks.final(usage(self._call, cached), system_fingerprint=system_fingerprint(self._call.served))

    def events_for(self, number: int, delta: TextDelta) -> bytes:
        """The event for a text delta, or b""."""
        if self._plain and delta.finish_reason is None:
            if not (delta.token_ids or delta.text):
                return b""  # a token without text still gets an event, so that clients can measure token times
            template = self._templates.get((number, delta.index))
            return (template or self._new_template(number, delta.index)).event(delta.text)
        call = self._call
        first = (number, delta.index) not in self._begun
        self._begun.add((number, delta.index))
        echo = self._echo(number) if call.fields.echo else None
        if call.prompt_only and not first:
            return b""
        if not (delta.token_ids or delta.text or delta.finish_reason or (echo and first)):
            return b""
        choice = self._choice(number, delta, echo, first)
        return self._chunks.choice(choice, usage(call) if self._usage.always else None)

    def _new_template(self, number: int, index: int) -> wire.TextEventTemplate:
        """The template of a completion's events that carry only text."""
        choice = self._choice(number, TextDelta(index, wire.PLACEHOLDER), None, False)
        template = self._templates[number, index] = wire.TextEventTemplate(self._chunks.choice(choice))
        return template

    def _echo(self, number: int) -> EchoedPrompt:
        if number not in self._echoes:
            self._echoes[number] = echo_of(self._call, number)
        return self._echoes[number]

    def _choice(self, number: int, delta: TextDelta, echo: EchoedPrompt | None, first: bool) -> dict[str, Any]:
        call = self._call
        text = "" if call.prompt_only else delta.text
        choice: dict[str, Any] = {
            "index": number * call.n + delta.index,
            "text": echo.text + text if echo and first else text,
            "logprobs": self._logprobs(delta, echo, first),
            "finish_reason": "length" if call.prompt_only else delta.finish_reason,
            "stop_reason": None if call.prompt_only else delta.stop_reason,
        }
        if call.fields.return_token_ids:
            choice["token_ids"] = [] if call.prompt_only else delta.token_ids
            if first:
                choice["prompt_token_ids"] = call.job.requests[number].prompt.token_ids
        return choice

    def _logprobs(self, delta: TextDelta, echo: EchoedPrompt | None, first: bool) -> dict[str, Any] | None:
        if self._call.fields.logprobs is None:
            return None
        logprobs = CompletionLogprobLists(self._call.fields.return_tokens_as_token_ids or False)
        if echo and first:
            logprobs.add_prompt(echo)
        if not self._call.prompt_only:
            logprobs.add(delta.token_ids, delta.logprobs, delta.text_offsets, echo.length if echo else 0)
        return logprobs.to_wire()

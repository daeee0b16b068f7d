"""Answers for the routes of plugins: a checked request, whose deltas are generated when they are iterated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any

from fastapi import Request as HttpRequest
from starlette.requests import HTTPConnection

from quire.errors import BadRequest
from quire.records import AnswerDelta, AnswerUsage, ToolCallDelta
from quire.server.audio import transcription
from quire.server.audio.stream import WindowTexts
from quire.server.http.body import LARGE_BODY, Body
from quire.server.http.sse import gather_quietly
from quire.server.jobs.generation import GenerationJob
from quire.server.openai import chat, completions
from quire.server.openai.chat import ChatCall
from quire.server.openai.chat_parts import ChatParts
from quire.server.openai.logprobs import chat_logprobs
from quire.server.schemas.requests import ChatRequest, CompletionRequest
from quire.server.schemas.speech import TranscriptionRequest
from quire.server.service.models import supports
from quire.server.service.service import ResponseIds, Service
from quire.text.outputs.outputs import TextDelta
from quire.text.parsing.reasoning import ReasoningDelta
from quire.text.parsing.tool_calls import ToolDelta


class JobAnswer:
    """An answer that a generation job gives. `split` turns a text delta of a numbered request into answer deltas."""

    def __init__(
        self,
        model: str,
        job: GenerationJob,
        split: Callable[[int, TextDelta], Iterator[AnswerDelta]],
        count_reasoning: Callable[[], int],
    ) -> None:
        self.model = model
        self._job, self._split, self._count_reasoning = job, split, count_reasoning

    async def deltas(self) -> AsyncGenerator[AnswerDelta, None]:
        """Generate. Closing the iterator aborts the request."""
        found: asyncio.Queue[tuple[int, TextDelta] | None] = asyncio.Queue()
        running = asyncio.create_task(self._job.run(lambda number, delta: found.put_nowait((number, delta))))
        running.add_done_callback(lambda _: found.put_nowait(None))
        try:
            while (delta := await found.get()) is not None:
                for part in self._split(*delta):
                    yield part
            running.result()
        finally:
            running.cancel()
            await gather_quietly(running)

    def usage(self) -> AnswerUsage:
        """The tokens so far."""
        collectors = self._job.collectors
        return AnswerUsage(
            prompt=sum(len(request.prompt.token_ids) for request in self._job.requests),
            output=sum(collector.num_output_tokens for collector in collectors),
            cached=sum(collector.num_cached_tokens or 0 for collector in collectors),
            reasoning=self._count_reasoning(),
        )


async def start_chat(service: Service, request: HttpRequest, body: Mapping[str, Any]) -> JobAnswer:
    """The answer to a body of `/v1/chat/completions`."""
    served, fields = await service.validate_body(request, _body_of(request, body), ChatRequest, supports("generate"))
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await chat.prepare(service, served, fields, ids, request.receive, streams=True)
    parts = ChatParts(call)
    reasoning = call.reasoning_usage

    def split(_: int, delta: TextDelta) -> Iterator[AnswerDelta]:
        for part, rest in parts.split(delta):
            yield _chat_delta(call, part, rest)

    def count_reasoning() -> int:
        return reasoning.count(call.job.collectors) if reasoning else 0

    return JobAnswer(served.name, call.job, split, count_reasoning)


async def start_completion(service: Service, request: HttpRequest, body: Mapping[str, Any]) -> JobAnswer:
    """The answer to a body of `/v1/completions`. Raises `BadRequest` for several prompts, `echo` and 0 tokens."""
    read = _body_of(request, body)
    served, fields = await service.validate_body(request, read, CompletionRequest, supports("generate"))
    ids = ResponseIds.from_request(request, fields.request_id)
    call = await completions.prepare(service, served, fields, ids, request.receive, streams=True)
    if len(call.job.requests) != 1 or call.prompt_only or fields.echo:
        raise BadRequest("This route continues one prompt, without `echo`.", "prompt")

    def split(_: int, delta: TextDelta) -> Iterator[AnswerDelta]:
        logprobs = chat_logprobs(delta.token_ids, delta.logprobs, fields.logprobs or 0, False) if delta.logprobs else {}
        yield _delta(delta, logprobs, text=delta.text)

    return JobAnswer(served.name, call.job, split, lambda: 0)


async def start_transcription(
    service: Service, connection: HTTPConnection, recording: bytes, fields: Mapping[str, Any]
) -> JobAnswer:
    """The answer to a form of `/v1/audio/transcriptions` with these fields and this file."""
    read = Body(dict(fields), large=False)
    served, checked = await service.validate_body(connection, read, TranscriptionRequest, supports("transcribe"))
    ids = ResponseIds.from_request(connection, checked.request_id)
    call = await transcription.prepare(service, served, checked, ids, recording, translate=False)
    job = await transcription.make_windows_job(call, await transcription.resolve_task(call))
    texts = WindowTexts(len(job.requests))

    def split(number: int, delta: TextDelta) -> Iterator[AnswerDelta]:
        yield AnswerDelta(0, text=texts.push(number, delta))

    return JobAnswer(served.name, job, split, lambda: 0)


def _body_of(request: HttpRequest, body: Mapping[str, Any]) -> Body:
    length = request.headers.get("content-length", "")
    return Body(dict(body), large=not length.isdecimal() or int(length) > LARGE_BODY)


def _chat_delta(call: ChatCall, part: str | ReasoningDelta | ToolDelta | None, rest: TextDelta) -> AnswerDelta:
    logprobs = chat.requested_logprobs(call, rest.token_ids, rest.logprobs) if rest.logprobs else {}
    if isinstance(part, ReasoningDelta):
        return _delta(rest, logprobs, reasoning=part.text)
    if isinstance(part, ToolDelta):
        return _delta(rest, logprobs, tool_call=ToolCallDelta(part.index, part.arguments, part.id, part.name))
    return _delta(rest, logprobs, text=part or "")


def _delta(rest: TextDelta, logprobs: Mapping[str, Any], **fields: Any) -> AnswerDelta:
    return AnswerDelta(
        rest.index,
        logprobs=logprobs.get("content") or (),
        finish_reason=rest.finish_reason,
        stop_reason=rest.stop_reason,
        **fields,
    )

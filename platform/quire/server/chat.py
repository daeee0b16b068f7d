"""`/v1/chat/completions`: a conversation in, the next message out, in OpenAI's shape.

It knows the wire shape of chat; templates, tools and tokens are `quire.text`'s affair.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from quire.errors import BadRequest
from quire.sampling import BeamSearchParams, SamplingParams
from quire.server import wire
from quire.server.chat_logprobs import chat_logprobs
from quire.server.chat_prompt import Rendered, render
from quire.server.job import Job
from quire.server.models import Served
from quire.server.params import beam_params, check_stream_fields, sampling_params
from quire.server.prompts import engine_requests, tokenized
from quire.server.schema_requests import ChatRequest
from quire.server.service import Naming, Service, fingerprint
from quire.server.streaming import stream_events
from quire.text.outputs import CompletionOutput, Piece


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of the endpoint, ready to run."""

    service: Service
    served: Served
    fields: ChatRequest
    naming: Naming
    created: int
    job: Job
    n: int
    rendered: Rendered


async def prepare(service: Service, served: Served, fields: ChatRequest, naming: Naming) -> Call:
    """Check, render and tokenize; nothing runs yet."""
    check_stream_fields(fields)
    max_tokens = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    if max_tokens is not None and max_tokens < 1:
        name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
        raise BadRequest(f"`{name}` must be at least 1, got {max_tokens}.", name)
    rendered = await asyncio.to_thread(render, service, served, fields)
    prompts = await tokenized(served, [rendered.text], fields, max_tokens, fields.add_special_tokens, "messages")
    room = served.info.max_model_len - len(prompts[0].token_ids)
    params = _params(service, served, fields, max_tokens, room)
    return Call(
        service=service,
        served=served,
        fields=fields,
        naming=naming,
        created=int(time.time()),
        job=service.job(served, engine_requests(served, prompts, params, fields, naming, "chatcmpl-")),
        n=1 if fields.n is None else fields.n,
        rendered=rendered,
    )


def _params(
    service: Service, served: Served, fields: ChatRequest, max_tokens: int | None, room: int
) -> SamplingParams | BeamSearchParams:
    if fields.top_logprobs and not fields.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    defaults = served.info.sampling_defaults
    if max_tokens is None:
        max_tokens = defaults.get("max_tokens")
        max_tokens = room if max_tokens is None else min(room, max_tokens)
    if fields.use_beam_search:
        if fields.logprobs:
            raise BadRequest("`logprobs` is not available with `use_beam_search`.", "logprobs")
        return beam_params(fields, max(1, max_tokens))
    return sampling_params(
        fields,
        service.rules,
        defaults,
        max_tokens=max(1, max_tokens),
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs,
    )


async def answer(call: Call) -> dict[str, Any]:
    """Run to the end; the whole answer."""
    (result,) = await call.job.results()
    fields = call.fields
    return {
        **_common(call, "chat.completion"),
        "choices": [_choice(call, output) for output in result.outputs[: call.n]],
        "usage": _usage(call, result.num_cached_tokens or 0),
        "service_tier": None,
        "system_fingerprint": fingerprint(call.served),
        "prompt_logprobs": wire.prompt_logprobs(result.prompt_logprobs),
        "prompt_token_ids": result.prompt_token_ids if fields.return_token_ids else None,
        "prompt_text": call.rendered.text if fields.return_prompt_text else None,
    }


def _common(call: Call, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{call.naming.base}",
        "object": kind,
        "created": call.created,
        "model": call.served.name,
    }


def _usage(call: Call, num_cached: int | None = None) -> dict[str, Any]:
    num_prompt = sum(len(request.prompt.token_ids) for request in call.job.requests)
    num_output = sum(collector.num_output_tokens for collector in call.job.collectors)
    detailed = call.service.config.enable_prompt_tokens_details
    return wire.usage(num_prompt, num_output, num_cached if detailed else None)


def _choice(call: Call, output: CompletionOutput) -> dict[str, Any]:
    fields = call.fields
    message: dict[str, Any] = {
        "role": call.rendered.role,
        "content": call.rendered.lead + output.text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    logprobs = None
    if fields.logprobs:
        logprobs = chat_logprobs(
            output.token_ids, output.logprobs or (), fields.top_logprobs or 0, fields.return_tokens_as_token_ids or False
        )
    return {
        "index": output.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "token_ids": output.token_ids if fields.return_token_ids else None,
    }


class Stream:
    """Turns pieces into events: per choice a chunk with the role, chunks with text, one with the reason of its end."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._chunks = wire.Chunks(_common(call, "chat.completion.chunk"))
        self._begun: set[int] = set()
        self._usage = wire.UsageWanted.of(call.fields.stream_options, call.service.config)

    def events(self) -> AsyncGenerator[bytes]:
        """The events of the whole stream."""
        return stream_events(self._call.job, self.piece, self._last)

    def _last(self) -> bytes:
        if not self._usage.at_end:
            return b""
        cached = self._call.job.collectors[0].num_cached_tokens or 0
        return self._chunks.final(_usage(self._call, cached), system_fingerprint=fingerprint(self._call.served))

    def piece(self, _: int, piece: Piece) -> bytes:
        """The events for a piece, or nothing."""
        data = b""
        if piece.index not in self._begun:
            self._begun.add(piece.index)
            data = self._begin(piece.index)
        if not (piece.text or piece.finish_reason or piece.logprobs):
            if not (self._call.fields.return_token_ids and piece.token_ids):
                return data
        return data + self._text(piece)

    def _begin(self, index: int) -> bytes:
        call = self._call
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

    def _text(self, piece: Piece) -> bytes:
        fields = self._call.fields
        logprobs = None
        if piece.logprobs:
            logprobs = chat_logprobs(
                piece.token_ids, piece.logprobs, fields.top_logprobs or 0, fields.return_tokens_as_token_ids or False
            )
        choice: dict[str, Any] = {
            "index": piece.index,
            "delta": {"content": piece.text} if piece.text or not piece.finish_reason else {},
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason:
            choice["stop_reason"] = piece.stop_reason
        if fields.return_token_ids:
            choice["token_ids"] = piece.token_ids
        return self._chunks.choice(choice, self._counted())

    def _counted(self) -> dict[str, Any] | None:
        return _usage(self._call) if self._usage.always else None

"""`/v1/chat/completions`: a conversation in, the next message out, in OpenAI's shape.

It knows the wire shape of chat; templates, tools and tokens are `quire.text`'s affair.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive

from quire.errors import BadRequest
from quire.pooling import check_task
from quire.sampling import BeamSearchParams, SamplingParams
from quire.server import wire
from quire.server.answer_size import AnswerShape, check_counts, within_bound
from quire.server.answers import written
from quire.server.chat_logprobs import chat_logprobs
from quire.server.chat_prompt import Rendered, render
from quire.server.chat_reasoning import (
    ReasoningUsage,
    calls_begin,
    constraint_begins,
    lead,
    limit,
    may_reason,
    reasoning_reader,
)
from quire.server.chat_tools import ToolUse, tool_use, whole_call, with_allowed_tools
from quire.server.job import Job
from quire.server.models import Served
from quire.server.params import beam_params, check_stream_fields, sampling_params
from quire.server.prompts import engine_requests, spelled, tokenized, tokenized_with_media, while_wanted
from quire.server.schema_requests import ChatRequest
from quire.server.service import Naming, Service, fingerprint
from quire.text.answers import Answer, AnswerReader
from quire.text.logprobs import PositionLogprobs
from quire.text.outputs import CompletionOutput, RequestOutput
from quire.types import Prompt


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
    reader: AnswerReader | None
    tools: ToolUse | None
    thinking: ReasoningUsage | None


async def prepare(service: Service, served: Served, fields: ChatRequest, naming: Naming, receive: Receive) -> Call:
    """Check, render and tokenize; nothing runs yet. receive: tells when the client is gone."""
    check_task("generate", served.info)
    fields = with_allowed_tools(fields)
    check_stream_fields(fields)
    max_tokens = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    if max_tokens is not None and max_tokens < 1:
        name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
        raise BadRequest(f"`{name}` must be at least 1, got {max_tokens}.", name)
    tools = tool_use(service, served, fields)
    rendered = await asyncio.to_thread(render, service, served, fields)
    if rendered.media:
        special = fields.add_special_tokens
        place = partial(
            tokenized_with_media, service, served, rendered.text, rendered.media, fields, max_tokens, special
        )
        prompt = await while_wanted(service.inflight, receive, place)
    else:
        prompt = await _tokenized(service, receive, served, rendered, fields, max_tokens)
    room = served.info.max_model_len - len(prompt.token_ids)
    reasoning = reasoning_reader(service, served, fields, rendered)
    reader = AnswerReader(reasoning, tools.reader if tools else None, rendered.text) if tools or reasoning else None
    params = _params(service, served, fields, max_tokens, room)
    if reader is not None:
        params = _with_parts(params, reader, tools, served, fields)
    params = await spelled(service, receive, served, _bounded(service, served, fields, params, prompt))
    requests = engine_requests(served, [prompt], params, fields, naming, "chatcmpl-")
    return Call(
        service=service,
        served=served,
        fields=fields,
        naming=naming,
        created=int(time.time()),
        job=service.job(served, requests, streams=bool(fields.stream)),
        n=1 if fields.n is None else fields.n,
        rendered=rendered,
        reader=reader,
        tools=tools,
        thinking=ReasoningUsage(reasoning, served.tokenizer, rendered.text) if reasoning else None,
    )


def _bounded(
    service: Service,
    served: Served,
    fields: ChatRequest,
    params: SamplingParams | BeamSearchParams,
    prompt: Prompt,
) -> SamplingParams | BeamSearchParams:
    shape = AnswerShape(
        num_prompts=1,
        num_prompt_tokens=len(prompt.token_ids),
        streamed=bool(fields.stream),
        asked=fields.max_tokens is not None or fields.max_completion_tokens is not None,
    )
    return within_bound(params, shape, served.info.vocab_size, service.config.max_response_bytes)


async def _tokenized(
    service: Service, receive: Receive, served: Served, rendered: Rendered, fields: ChatRequest, max_tokens: int | None
) -> Prompt:
    special = fields.add_special_tokens
    (prompt,) = await tokenized(service, receive, served, [rendered.text], fields, max_tokens, special, "messages")
    return prompt


def _params(
    service: Service, served: Served, fields: ChatRequest, max_tokens: int | None, room: int
) -> SamplingParams | BeamSearchParams:
    if fields.top_logprobs and not fields.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    check_counts(served, "top_logprobs", fields.top_logprobs, fields.prompt_logprobs)
    defaults = served.info.sampling_defaults
    if max_tokens is None:
        max_tokens = defaults.get("max_tokens")
        max_tokens = room if max_tokens is None else min(room, max_tokens)
    if fields.use_beam_search:
        if fields.logprobs:
            raise BadRequest("`logprobs` is not available with `use_beam_search`.", "logprobs")
        return beam_params(fields, service.rules, max(1, max_tokens))
    return sampling_params(
        fields,
        service.rules,
        defaults,
        service.config,
        max_tokens=max(1, max_tokens),
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs,
    )


def _with_parts(
    params: SamplingParams | BeamSearchParams,
    reader: AnswerReader,
    tools: ToolUse | None,
    served: Served,
    fields: ChatRequest,
) -> SamplingParams | BeamSearchParams:
    """Parameters for answers with reasoning or calls: what the text must keep, and what it is held to."""
    if any(served.tokenizer.vocab.get(mark) in served.tokenizer.special_ids for mark in reader.marks):
        params = replace(params, skip_special_tokens=False)
    after = constraint_begins(reader.reasoning)
    template = (served.template.for_tools if served.template else None) or ""
    form = params.structured
    if tools is not None and tools.demanded:
        before = calls_begin(reader.reasoning), lead(reader.reasoning, tools.parser)
        params = replace(params, structured=tools.demand(template, *before))
    elif tools is not None:
        held = tools.form(template, form, after)
        if held is None and not may_reason(reader.reasoning):
            held = tools.strict(template, after)
        params = replace(params, structured=held)
    elif form is not None:
        params = replace(params, structured=replace(form, after=after))
    extra = limit(reader.reasoning, fields, served.tokenizer)
    if not extra:
        return params
    if isinstance(params, BeamSearchParams):
        raise BadRequest("`thinking_token_budget` has no effect with `use_beam_search`.", "thinking_token_budget")
    return replace(params, extra={**params.extra, **extra})


async def answer(call: Call) -> Response:
    """Run to the end; the whole answer."""
    return await written(call.service, call.served, call.job, partial(_shape_of, call))


def _shape_of(call: Call, results: Sequence[RequestOutput]) -> dict[str, Any]:
    (result,) = results
    fields = call.fields
    return {
        **common(call, "chat.completion"),
        "choices": [_choice(call, output) for output in result.outputs[: call.n]],
        "usage": count_tokens(call, result.num_cached_tokens or 0),
        "service_tier": None,
        "system_fingerprint": fingerprint(call.served),
        "prompt_logprobs": wire.prompt_logprobs(result.prompt_logprobs),
        "prompt_token_ids": result.prompt_token_ids if fields.return_token_ids else None,
        "prompt_text": call.rendered.text if fields.return_prompt_text else None,
    }


def common(call: Call, kind: str) -> dict[str, Any]:
    """What all bodies and chunks of an answer say."""
    return {
        "id": f"chatcmpl-{call.naming.base}",
        "object": kind,
        "created": call.created,
        "model": call.served.name,
    }


def logprobs_of(call: Call, token_ids: Sequence[int], positions: Sequence[PositionLogprobs]) -> dict[str, Any]:
    """Log-probabilities of tokens, as many as the request asked for."""
    fields = call.fields
    return chat_logprobs(token_ids, positions, fields.top_logprobs or 0, fields.return_tokens_as_token_ids or False)


def count_tokens(call: Call, num_cached: int | None = None) -> dict[str, Any]:
    """The usage so far."""
    prompts = [request.prompt for request in call.job.requests]
    num_prompt = sum(len(prompt.token_ids) for prompt in prompts)
    num_media = sum(medium.length for prompt in prompts for medium in prompt.media)
    num_output = sum(collector.num_output_tokens for collector in call.job.collectors)
    detailed = call.service.config.enable_prompt_tokens_details
    num_thinking = call.thinking.count(call.job.collectors) if call.thinking else None
    return wire.usage(num_prompt, num_output, num_cached if detailed else None, num_media, num_thinking)


def _choice(call: Call, output: CompletionOutput) -> dict[str, Any]:
    fields = call.fields
    cut = output.finish_reason == "length"
    said = call.reader.read(output.text, cut) if call.reader else Answer(output.text, None, [])
    lead = call.rendered.lead
    message: dict[str, Any] = {
        "role": call.rendered.role,
        "content": said.content if said.content is None and not lead else lead + (said.content or ""),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if call.thinking is not None:
        message["reasoning"] = said.reasoning if fields.include_reasoning else None
    finish: str | None = output.finish_reason
    if call.tools is not None:
        call.service.metrics.sought_calls(call.served.name, streamed=False, found=bool(said.calls))
    if call.tools is not None and said.calls:
        message["tool_calls"] = [whole_call(made) for made in said.calls[: call.tools.at_most]]
        finish = call.tools.finish(finish, len(said.calls))
    return {
        "index": output.index,
        "message": message,
        "logprobs": logprobs_of(call, output.token_ids, output.logprobs or ()) if fields.logprobs else None,
        "finish_reason": finish,
        "stop_reason": output.stop_reason,
        "token_ids": output.token_ids if fields.return_token_ids else None,
    }

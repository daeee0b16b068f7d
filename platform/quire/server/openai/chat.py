"""Prepares and runs `/v1/chat/completions`: renders the conversation, generates, and shapes the whole answer."""

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
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.server.jobs.generation import GenerationJob
from quire.server.openai import format as wire
from quire.server.openai.chat_prediction import PredictionUsage, predicted_text
from quire.server.openai.chat_prompt import RenderedPrompt, render
from quire.server.openai.chat_reasoning import ReasoningUsage, budget_field, make_extractor, reasoning_bounds
from quire.server.openai.chat_tools import ToolUse, full_call, resolve_tools
from quire.server.openai.logprobs import chat_logprobs
from quire.server.schemas.requests import ChatRequest
from quire.server.service.answers import (
    AnswerShape,
    GenerationParams,
    bounded_params,
    check_logprob_counts,
    run_job,
)
from quire.server.service.models import ServedModel
from quire.server.service.prompts import (
    engine_requests,
    run_until_disconnect,
    tokenize_chat_with_media,
    tokenize_prompts,
    with_token_ids,
)
from quire.server.service.request_fields import beam_params, check_stream_fields, sampling_params
from quire.server.service.service import ResponseIds, Service, system_fingerprint
from quire.text.outputs.logprobs import PositionLogprobs
from quire.text.outputs.outputs import CompletionOutput, RequestOutput
from quire.text.parsing.output_parser import OutputParser, ParsedOutput
from quire.types import Prompt
from quire.types.request_validation import check_task


@dataclass(frozen=True, kw_only=True)
class ChatCall:
    """A prepared call of the endpoint. parser: splits the text into reasoning, content and tool calls, if needed."""

    service: Service
    served: ServedModel
    fields: ChatRequest
    ids: ResponseIds
    created: int
    job: GenerationJob
    n: int
    rendered: RenderedPrompt
    parser: OutputParser | None
    tools: ToolUse | None
    reasoning_usage: ReasoningUsage | None
    prediction_usage: PredictionUsage | None


async def prepare(
    service: Service,
    served: ServedModel,
    fields: ChatRequest,
    ids: ResponseIds,
    receive: Receive,
    streams: bool | None = None,
) -> ChatCall:
    """Check the fields, render and tokenize; nothing is generated yet.

    receive: notices a disconnect. streams: the caller uses text deltas; None: if the request says `stream`.
    """
    check_task("generate", served.info)
    check_stream_fields(fields)
    max_tokens = _max_tokens(fields)
    predicted = predicted_text(fields, service.config.max_text_chars)
    tools = None
    if fields.tools is not None or fields.tool_choice is not None:
        fields, tools = resolve_tools(service, served, fields)
    rendered = await asyncio.to_thread(render, service, served, fields)
    prompt = await _tokenize(service, receive, served, rendered, fields, max_tokens)
    reasoning = None
    if served.reasoning_parser is not None or fields.thinking_token_budget is not None:
        reasoning = make_extractor(service, served, fields, rendered)
    parser = OutputParser(reasoning, tools.extractor if tools else None, rendered.text) if tools or reasoning else None
    params = _params(service, served, fields, max_tokens, len(prompt.token_ids))
    if parser is not None:
        params = _apply_output_format(params, parser, tools, served, fields)
    params = _bounded_params(service, served, fields, params, prompt)
    if isinstance(params, SamplingParams):
        params = replace(params, prediction=predicted)
    params = await with_token_ids(service, receive, served, params)
    prediction_usage = None
    if predicted is not None and isinstance(params, SamplingParams):
        prediction_usage = PredictionUsage(params.prediction_ids)
    requests = engine_requests(served, [prompt], params, fields, ids, "chatcmpl-")
    return ChatCall(
        service=service,
        served=served,
        fields=fields,
        ids=ids,
        created=int(time.time()),
        job=service.generation_job(served, requests, streams=bool(fields.stream) if streams is None else streams),
        n=1 if fields.n is None else fields.n,
        rendered=rendered,
        parser=parser,
        tools=tools,
        reasoning_usage=ReasoningUsage(reasoning, served.tokenizer, rendered.text) if reasoning else None,
        prediction_usage=prediction_usage,
    )


def _max_tokens(fields: ChatRequest) -> int | None:
    max_tokens = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    if max_tokens is not None and max_tokens < 1:
        name = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
        raise BadRequest(f"`{name}` must be at least 1, got {max_tokens}.", name)
    return max_tokens


async def _tokenize(
    service: Service,
    receive: Receive,
    served: ServedModel,
    rendered: RenderedPrompt,
    fields: ChatRequest,
    max_tokens: int | None,
) -> Prompt:
    text, special = rendered.text, fields.add_special_tokens
    if rendered.media:
        tokenize = partial(tokenize_chat_with_media, service, served, text, rendered.media, fields, max_tokens, special)
        return await run_until_disconnect(service.inflight, receive, tokenize)
    (prompt,) = await tokenize_prompts(service, receive, served, [text], fields, max_tokens, special, "messages")
    return prompt


def _params(
    service: Service, served: ServedModel, fields: ChatRequest, max_tokens: int | None, num_prompt: int
) -> GenerationParams:
    if fields.top_logprobs and not fields.logprobs:
        raise BadRequest("`top_logprobs` needs `logprobs` to be true.", "top_logprobs")
    check_logprob_counts(served, "top_logprobs", fields.top_logprobs, fields.prompt_logprobs)
    defaults = served.info.sampling_defaults
    if max_tokens is None:
        num_left = served.info.max_model_len - num_prompt
        max_tokens = defaults.get("max_tokens")
        max_tokens = num_left if max_tokens is None else min(num_left, max_tokens)
    if fields.use_beam_search:
        if fields.logprobs:
            raise BadRequest("`logprobs` is not available with `use_beam_search`.", "logprobs")
        return beam_params(fields, service.request_fields, max(1, max_tokens))
    return sampling_params(
        fields,
        service.request_fields,
        defaults,
        service.config,
        max_tokens=max(1, max_tokens),
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        prompt_logprobs=fields.prompt_logprobs,
    )


def _apply_output_format(
    params: GenerationParams,
    parser: OutputParser,
    tools: ToolUse | None,
    served: ServedModel,
    fields: ChatRequest,
) -> GenerationParams:
    """Parameters for an answer with reasoning or tool calls: kept special tokens, constraint, reasoning budget."""
    if any(served.tokenizer.vocab.get(mark) in served.tokenizer.special_ids for mark in parser.special_tokens):
        params = replace(params, skip_special_tokens=False)
    bounds = reasoning_bounds(parser.reasoning, tools.parser if tools else None)
    if tools is not None:
        template = (served.template.tool_template if served.template else None) or ""
        params = replace(params, structured=tools.constraint(template, params.structured, bounds))
    elif params.structured is not None:
        params = replace(params, structured=replace(params.structured, after=bounds.constraint_start))
    budget = budget_field(parser.reasoning, fields, served.tokenizer)
    if not budget:
        return params
    if isinstance(params, BeamSearchParams):
        raise BadRequest("`thinking_token_budget` has no effect with `use_beam_search`.", "thinking_token_budget")
    return replace(params, extra={**params.extra, **budget})


def _bounded_params(
    service: Service, served: ServedModel, fields: ChatRequest, params: GenerationParams, prompt: Prompt
) -> GenerationParams:
    shape = AnswerShape(
        num_prompts=1,
        num_prompt_tokens=len(prompt.token_ids),
        streamed=bool(fields.stream),
        has_max_tokens=fields.max_tokens is not None or fields.max_completion_tokens is not None,
    )
    return bounded_params(params, shape, served.info.vocab_size, service.config.max_response_bytes)


async def run(call: ChatCall) -> Response:
    """Generate to the end and return the whole answer."""
    return await run_job(call.service, call.served, call.job, partial(_response_body, call))


def _response_body(call: ChatCall, results: Sequence[RequestOutput]) -> dict[str, Any]:
    (result,) = results
    fields = call.fields
    return {
        **base_fields(call, "chat.completion"),
        "choices": [_choice(call, output) for output in result.outputs[: call.n]],
        "usage": usage(call, result.num_cached_tokens or 0),
        "service_tier": None,
        "system_fingerprint": system_fingerprint(call.served),
        "prompt_logprobs": wire.prompt_logprobs(result.prompt_logprobs),
        "prompt_token_ids": result.prompt_token_ids if fields.return_token_ids else None,
        "prompt_text": call.rendered.text if fields.return_prompt_text else None,
    }


def base_fields(call: ChatCall, kind: str) -> dict[str, Any]:
    """The fields that all bodies and chunks of an answer have. kind: the value of `object`."""
    return {
        "id": f"chatcmpl-{call.ids.base}",
        "object": kind,
        "created": call.created,
        "model": call.served.name,
    }


def requested_logprobs(
    call: ChatCall, token_ids: Sequence[int], logprobs: Sequence[PositionLogprobs]
) -> dict[str, Any]:
    """The log-probabilities of tokens, with as many alternatives as the request asks for."""
    fields = call.fields
    return chat_logprobs(token_ids, logprobs, fields.top_logprobs or 0, fields.return_tokens_as_token_ids or False)


def usage(call: ChatCall, num_cached: int | None = None) -> dict[str, Any]:
    """The usage object, with the tokens generated so far."""
    prompts = [request.prompt for request in call.job.requests]
    num_prompt = sum(len(prompt.token_ids) for prompt in prompts)
    num_media = sum(medium.length for prompt in prompts for medium in prompt.media)
    num_output = sum(collector.num_output_tokens for collector in call.job.collectors)
    detailed = call.service.config.enable_prompt_tokens_details
    num_reasoning = call.reasoning_usage.count(call.job.collectors) if call.reasoning_usage else None
    num_predicted = call.prediction_usage.count(call.job.collectors) if call.prediction_usage else None
    cached = num_cached if detailed else None
    return wire.usage(num_prompt, num_output, cached, num_media, num_reasoning, num_predicted)


def _choice(call: ChatCall, output: CompletionOutput) -> dict[str, Any]:
    fields = call.fields
    cut = output.finish_reason == "length"
    parsed = call.parser.read(output.text, cut) if call.parser else ParsedOutput(output.text, None, [])
    echo = call.rendered.echo
    message: dict[str, Any] = {
        "role": call.rendered.role,
        "content": parsed.content if parsed.content is None and not echo else echo + (parsed.content or ""),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if call.reasoning_usage is not None:
        message["reasoning"] = parsed.reasoning if fields.include_reasoning else None
    finish: str | None = output.finish_reason
    if call.tools is not None:
        call.service.metrics.count_tool_parsing(call.served.name, streamed=False, found=bool(parsed.calls))
    if call.tools is not None and parsed.calls:
        message["tool_calls"] = [full_call(tool_call) for tool_call in parsed.calls[: call.tools.max_calls]]
        finish = call.tools.finish_reason(finish, len(parsed.calls))
    return {
        "index": output.index,
        "message": message,
        "logprobs": requested_logprobs(call, output.token_ids, output.logprobs or ()) if fields.logprobs else None,
        "finish_reason": finish,
        "stop_reason": output.stop_reason,
        "token_ids": output.token_ids if fields.return_token_ids else None,
    }

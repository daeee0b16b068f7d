"""Prepares and runs `/v1/completions`: tokenizes the prompts, generates, and shapes the whole answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response
from starlette.types import Receive

from quire.errors import BadRequest
from quire.server.jobs.generation import GenerationJob
from quire.server.openai import format as wire
from quire.server.openai.logprobs import CompletionLogprobLists, EchoedPrompt
from quire.server.schemas.requests import CompletionRequest
from quire.server.service.answers import (
    AnswerShape,
    GenerationParams,
    bounded_params,
    check_logprob_counts,
    run_job,
)
from quire.server.service.models import ServedModel
from quire.server.service.prompts import engine_requests, tokenize_prompts, with_token_ids
from quire.server.service.request_fields import beam_params, check_stream_fields, sampling_params
from quire.server.service.service import ResponseIds, Service, system_fingerprint
from quire.text.inputs.inputs import PromptInput
from quire.text.outputs.outputs import CompletionOutput, RequestOutput
from quire.types import Prompt
from quire.types.request_validation import check_task

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class CompletionCall:
    """A prepared call of the endpoint.

    prompt_only: `max_tokens` was 0; one token is generated, because that computes the prompt, and not sent.
    """

    service: Service
    served: ServedModel
    fields: CompletionRequest
    ids: ResponseIds
    created: int
    job: GenerationJob
    n: int
    prompt_only: bool


async def prepare(
    service: Service,
    served: ServedModel,
    fields: CompletionRequest,
    ids: ResponseIds,
    receive: Receive,
    streams: bool | None = None,
) -> CompletionCall:
    """Check the fields and tokenize the prompts; nothing is generated yet.

    receive: notices a disconnect. streams: the caller uses text deltas; None: if the request says `stream`.
    """
    check_task("generate", served.info)
    check_stream_fields(fields)
    if fields.thinking_token_budget is not None:
        raise BadRequest("`thinking_token_budget` is for chat completions only.", "thinking_token_budget")
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    prompt_only = max_tokens == 0
    if prompt_only and not (fields.echo or fields.prompt_logprobs is not None):
        raise BadRequest("`max_tokens` must be at least 1, or 0 together with `echo`.", "max_tokens")
    params = await with_token_ids(service, receive, served, _params(service, served, fields, max_tokens or 1))
    values = _prompts(fields.prompt)
    prompts = await tokenize_prompts(
        service, receive, served, values, fields, max_tokens, fields.add_special_tokens, "prompt"
    )
    params = _bounded_params(service, served, fields, params, prompts)
    requests = engine_requests(served, prompts, params, fields, ids, "cmpl-")
    job = service.generation_job(served, requests, streams=bool(fields.stream) if streams is None else streams)
    job.shows_output = not prompt_only
    return CompletionCall(
        service=service,
        served=served,
        fields=fields,
        ids=ids,
        created=int(time.time()),
        job=job,
        n=1 if fields.n is None else fields.n,
        prompt_only=prompt_only,
    )


def _params(service: Service, served: ServedModel, fields: CompletionRequest, max_tokens: int) -> GenerationParams:
    if fields.use_beam_search:
        if fields.logprobs is not None:
            raise BadRequest("`logprobs` is not available with `use_beam_search`.", "logprobs")
        return beam_params(fields, service.request_fields, max_tokens)
    if fields.logprobs is not None and fields.logprobs < 0:
        raise BadRequest(f"`logprobs` must be at least 0, got {fields.logprobs}.", "logprobs")
    check_logprob_counts(served, "logprobs", fields.logprobs, fields.prompt_logprobs)
    prompt_logprobs = fields.prompt_logprobs
    if prompt_logprobs is None and fields.echo:
        prompt_logprobs = fields.logprobs
    return sampling_params(
        fields,
        service.request_fields,
        served.info.sampling_defaults,
        service.config,
        max_tokens=max_tokens,
        logprobs=fields.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _bounded_params(
    service: Service,
    served: ServedModel,
    fields: CompletionRequest,
    params: GenerationParams,
    prompts: Sequence[Prompt],
) -> GenerationParams:
    shape = AnswerShape(
        num_prompts=len(prompts),
        num_prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        streamed=bool(fields.stream),
        prompt_copies=fields.n or 1,  # in each choice
    )
    return bounded_params(params, shape, served.info.vocab_size, service.config.max_response_bytes)


def _prompts(prompt: Any) -> list[PromptInput]:
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


async def run(call: CompletionCall) -> Response:
    """Generate to the end and return the whole answer."""
    return await run_job(call.service, call.served, call.job, partial(response_body, call))


def response_body(call: CompletionCall, results: Sequence[RequestOutput]) -> dict[str, Any]:
    """The body of the response."""
    choices = []
    num_cached = 0
    for number, result in enumerate(results):
        num_cached += result.num_cached_tokens or 0
        for output in result.outputs[: call.n]:
            choice = _choice(call, number, output)
            choice["prompt_logprobs"] = (
                wire.prompt_logprobs(result.prompt_logprobs) if call.fields.prompt_logprobs is not None else None
            )
            choice["prompt_token_ids"] = result.prompt_token_ids if call.fields.return_token_ids else None
            choices.append(choice)
    return {
        **base_fields(call),
        "choices": choices,
        "usage": usage(call, num_cached),
        "service_tier": None,
        "system_fingerprint": system_fingerprint(call.served),
    }


def base_fields(call: CompletionCall) -> dict[str, Any]:
    """The fields that all bodies and chunks of an answer have."""
    return {
        "id": f"cmpl-{call.ids.base}",
        "object": "text_completion",
        "created": call.created,
        "model": call.served.name,
    }


def usage(call: CompletionCall, num_cached: int | None = None) -> dict[str, Any]:
    """The usage object, with the tokens generated so far."""
    num_prompt = sum(len(request.prompt.token_ids) for request in call.job.requests)
    num_output = 0 if call.prompt_only else sum(collector.num_output_tokens for collector in call.job.collectors)
    detailed = call.service.config.enable_prompt_tokens_details
    return wire.usage(num_prompt, num_output, num_cached if detailed else None)


def _choice(call: CompletionCall, number: int, output: CompletionOutput) -> dict[str, Any]:
    echo = echo_of(call, number) if call.fields.echo else None
    text = "" if call.prompt_only else output.text
    token_ids = [] if call.prompt_only else output.token_ids
    logprobs = None
    if call.fields.logprobs is not None:
        logprobs = CompletionLogprobLists(call.fields.return_tokens_as_token_ids or False)
        if echo is not None:
            logprobs.add_prompt(echo)
        if not call.prompt_only:
            logprobs.add(output.token_ids, output.logprobs, output.text_offsets)
    return {
        "index": number * call.n + output.index,
        "text": (echo.text if echo else "") + text,
        "logprobs": logprobs.to_wire() if logprobs else None,
        "finish_reason": "length" if call.prompt_only else output.finish_reason,
        "stop_reason": None if call.prompt_only else output.stop_reason,
        "token_ids": token_ids if call.fields.return_token_ids else None,
    }


def echo_of(call: CompletionCall, number: int) -> EchoedPrompt:
    """The echo of prompt `number`."""
    return EchoedPrompt.from_prompt(
        call.job.requests[number].prompt, call.job.collectors[number].prompt_logprobs, call.served.tokenizer
    )

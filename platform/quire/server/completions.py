"""`/v1/completions`: prompts in, texts out, in OpenAI's shape.

It knows the wire shape of completions; tokens, stops and streams of bytes are others' affair.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
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
from quire.server.completion_logprobs import Lead, Logprobs
from quire.server.job import Job
from quire.server.models import Served
from quire.server.params import beam_params, check_stream_fields, sampling_params
from quire.server.prompts import engine_requests, spelled, tokenized
from quire.server.schema_requests import CompletionRequest
from quire.server.service import Naming, Service, fingerprint
from quire.text.inputs import PromptInput
from quire.text.outputs import CompletionOutput, RequestOutput
from quire.types import Prompt

DEFAULT_MAX_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of the endpoint, ready to run.

    scoring: max_tokens was 0; one token is drawn, since that computes the prompt, and dropped.
    """

    service: Service
    served: Served
    fields: CompletionRequest
    naming: Naming
    created: int
    job: Job
    n: int
    scoring: bool


async def prepare(
    service: Service, served: Served, fields: CompletionRequest, naming: Naming, receive: Receive
) -> Call:
    """Check and tokenize; nothing runs yet. receive: tells when the client is gone."""
    check_task("generate", served.info)
    check_stream_fields(fields)
    if fields.thinking_token_budget is not None:
        raise BadRequest("`thinking_token_budget` is for chat: a plain text has no reasoning.", "thinking_token_budget")
    max_tokens = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    scoring = max_tokens == 0
    if scoring and not (fields.echo or fields.prompt_logprobs is not None):
        raise BadRequest("`max_tokens` must be at least 1, or 0 together with `echo`.", "max_tokens")
    params = await spelled(service, receive, served, _params(service, served, fields, max_tokens or 1))
    values = _prompts(fields.prompt)
    prompts = await tokenized(service, receive, served, values, fields, max_tokens, fields.add_special_tokens, "prompt")
    params = _bounded(service, served, fields, params, prompts)
    requests = engine_requests(served, prompts, params, fields, naming, "cmpl-")
    return Call(
        service=service,
        served=served,
        fields=fields,
        naming=naming,
        created=int(time.time()),
        job=service.job(served, requests, streams=bool(fields.stream)),
        n=1 if fields.n is None else fields.n,
        scoring=scoring,
    )


def _params(
    service: Service, served: Served, fields: CompletionRequest, max_tokens: int
) -> SamplingParams | BeamSearchParams:
    if fields.use_beam_search:
        if fields.logprobs is not None:
            raise BadRequest("`logprobs` is not available with `use_beam_search`.", "logprobs")
        return beam_params(fields, service.rules, max_tokens)
    if fields.logprobs is not None and fields.logprobs < 0:
        raise BadRequest(f"`logprobs` must be at least 0, got {fields.logprobs}.", "logprobs")
    check_counts(served, "logprobs", fields.logprobs, fields.prompt_logprobs)
    about_prompt = fields.prompt_logprobs
    if about_prompt is None and fields.echo:
        about_prompt = fields.logprobs
    return sampling_params(
        fields,
        service.rules,
        served.info.sampling_defaults,
        service.config,
        max_tokens=max_tokens,
        logprobs=fields.logprobs,
        prompt_logprobs=about_prompt,
    )


def _bounded(
    service: Service,
    served: Served,
    fields: CompletionRequest,
    params: SamplingParams | BeamSearchParams,
    prompts: Sequence[Prompt],
) -> SamplingParams | BeamSearchParams:
    shape = AnswerShape(
        num_prompts=len(prompts),
        num_prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        streamed=bool(fields.stream),
        prompt_copies=fields.n or 1,  # each choice has those of its prompt
    )
    return within_bound(params, shape, served.info.vocab_size, service.config.max_response_bytes)


def _prompts(prompt: Any) -> list[PromptInput]:
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [prompt]
    return list(prompt)


async def answer(call: Call) -> Response:
    """Run to the end; the whole answer."""
    return await written(call.service, call.served, call.job, partial(shape_of, call))


def shape_of(call: Call, results: Sequence[RequestOutput]) -> dict[str, Any]:
    """The answer in the shape of the wire."""
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
        **common(call),
        "choices": choices,
        "usage": count_tokens(call, num_cached),
        "service_tier": None,
        "system_fingerprint": fingerprint(call.served),
    }


def common(call: Call) -> dict[str, Any]:
    """What all bodies and chunks of an answer say."""
    return {
        "id": f"cmpl-{call.naming.base}",
        "object": "text_completion",
        "created": call.created,
        "model": call.served.name,
    }


def count_tokens(call: Call, num_cached: int | None = None) -> dict[str, Any]:
    """The usage so far."""
    num_prompt = sum(len(request.prompt.token_ids) for request in call.job.requests)
    num_output = 0 if call.scoring else sum(collector.num_output_tokens for collector in call.job.collectors)
    detailed = call.service.config.enable_prompt_tokens_details
    return wire.usage(num_prompt, num_output, num_cached if detailed else None)


def _choice(call: Call, number: int, output: CompletionOutput) -> dict[str, Any]:
    lead = lead_of(call, number) if call.fields.echo else None
    text = "" if call.scoring else output.text
    token_ids = [] if call.scoring else output.token_ids
    logprobs = None
    if call.fields.logprobs is not None:
        logprobs = Logprobs(call.fields.return_tokens_as_token_ids or False)
        if lead is not None:
            logprobs.add_prompt(lead)
        if not call.scoring:
            logprobs.add(output.token_ids, output.logprobs, output.text_offsets)
    return {
        "index": number * call.n + output.index,
        "text": (lead.text if lead else "") + text,
        "logprobs": logprobs.shape() if logprobs else None,
        "finish_reason": "length" if call.scoring else output.finish_reason,
        "stop_reason": None if call.scoring else output.stop_reason,
        "token_ids": token_ids if call.fields.return_token_ids else None,
    }


def lead_of(call: Call, number: int) -> Lead:
    """The echo of a prompt."""
    return Lead.of(call.job.requests[number].prompt, call.job.collectors[number].prompt_logprobs, call.served.tokenizer)

"""Spans of an ended engine request: the request itself, its time in the queue, prefill and decoding.

Attributes have the names of OpenTelemetry's semantic conventions for generative AI, `gen_ai.latency.…` those of vLLM;
what neither has is under `quire.…`. Prompts and answers are never recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry import context as otel_context, trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from quire.errors import QuireError
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.types import Params, Request, RequestSummary

OPERATION = otel_context.create_key("quire-operation")
"""Key in a context: the value of `gen_ai.operation.name` for requests made in it."""

CHAT = frozenset({"chat", "messages", "responses"})
"""Segments of the paths of routes that answer conversations."""

NS = 1_000_000_000


def operation_of(path: str) -> str:
    """The `gen_ai.operation.name` of the requests that generate for a route."""
    segments = path.split("/")
    if "transcriptions" in segments or "translations" in segments:
        return "transcription"
    return "chat" if CHAT.intersection(segments) else "text_completion"


@dataclass(frozen=True)
class RequestScope:
    """What is known before a request runs. context: has the span of the HTTP request. streams: as it is generated."""

    context: Context
    streams: bool

    @property
    def operation(self) -> str:
        return str(self.context.get(OPERATION, "text_completion"))


@dataclass(frozen=True, kw_only=True)
class EndedRequest:
    """An ended request. begin_ns, end_ns: Unix times in nanoseconds. error: why it failed, None if it did not."""

    scope: RequestScope
    request: Request
    summary: RequestSummary
    begin_ns: int
    end_ns: int
    error: QuireError | None = None


def record_spans(tracer: Tracer, ended: EndedRequest) -> None:
    """Make and end the spans of a request."""
    operation, model = _operation(ended), ended.summary.model
    span = tracer.start_span(
        f"{operation} {model}",
        context=ended.scope.context,
        kind=SpanKind.INTERNAL,
        attributes=dict(_attributes(ended, operation)),
        start_time=ended.begin_ns,
    )
    if ended.error is not None:
        span.set_attribute("error.type", type(ended.error).__name__)
        span.set_status(Status(StatusCode.ERROR, ended.error.message))
    elif ended.summary.finish_reason == "error":
        span.set_attribute("error.type", "_OTHER")
        span.set_status(Status(StatusCode.ERROR))
    parent = trace.set_span_in_context(span, Context())
    for name, begin_s, end_s in _phases(ended.summary):
        begin_ns, end_ns = (ended.begin_ns + int(seconds * NS) for seconds in (begin_s, end_s))
        tracer.start_span(name, context=parent, start_time=begin_ns).end(max(begin_ns, end_ns))
    span.end(max(ended.begin_ns, ended.end_ns))


def _operation(ended: EndedRequest) -> str:
    params = ended.request.params
    if not isinstance(params, PoolingParams):
        return ended.scope.operation
    return "embeddings" if params.task in ("embed", "token_embed") else params.task


def _phases(summary: RequestSummary) -> Iterator[tuple[str, float, float]]:
    """(name, begin, end) of each phase that the request reached, in seconds since its arrival.

    The prefill of a pooled prompt lasts until its result, since it generates nothing.
    """
    if summary.queue_s is None:
        return
    first = summary.e2e_s if summary.first_token_s is None else summary.first_token_s
    queued = min(summary.queue_s, first)  # measured in another process
    yield "queue", 0.0, queued
    yield "prefill", queued, first
    if summary.first_token_s is not None:
        yield "decode", first, summary.e2e_s


def _attributes(ended: EndedRequest, operation: str) -> Iterator[tuple[str, Any]]:
    request, summary = ended.request, ended.summary
    yield "gen_ai.operation.name", operation
    yield "gen_ai.provider.name", "quire"
    yield "gen_ai.request.model", summary.adapters[0] if len(summary.adapters) == 1 else summary.model
    yield "gen_ai.response.model", summary.model
    yield "gen_ai.request.id", summary.request_id
    if summary.adapters:
        yield "quire.adapters", summary.adapters
        yield "quire.adapter_weights", tuple(use.weight for use in request.adapters)
    yield from _params(request.params)
    yield "gen_ai.usage.input_tokens", summary.num_prompt_tokens
    yield "gen_ai.usage.cache_read.input_tokens", summary.num_cached_tokens
    yield "gen_ai.latency.e2e", summary.e2e_s
    if summary.queue_s is not None:
        yield "gen_ai.latency.time_in_queue", summary.queue_s
    if isinstance(request.params, PoolingParams):
        return
    yield "gen_ai.request.stream", ended.scope.streams
    yield "gen_ai.usage.output_tokens", summary.num_generated_tokens
    yield "gen_ai.response.finish_reasons", (summary.finish_reason,)
    if summary.first_token_s is not None:
        yield "gen_ai.latency.time_to_first_token", summary.first_token_s


def _params(params: Params) -> Iterator[tuple[str, Any]]:
    """The parameters of a request that the conventions name, without those that were left out."""
    given: Mapping[str, Any] = {}
    if isinstance(params, PoolingParams):
        given = {"embeddings.dimension.count": params.dimensions}
    elif isinstance(params, BeamSearchParams):
        given = {"request.max_tokens": params.max_tokens, "request.choice.count": params.beam_width}
    elif isinstance(params, SamplingParams):
        given = {
            "request.max_tokens": params.max_tokens,
            "request.choice.count": params.n if params.n != 1 else None,
            "request.temperature": params.temperature,
            "request.top_p": params.top_p,
            "request.top_k": params.top_k if params.top_k > 0 else None,
            "request.frequency_penalty": params.frequency_penalty or None,
            "request.presence_penalty": params.presence_penalty or None,
            "request.seed": params.seed,
            "request.stop_sequences": params.stop or None,
        }
    yield from ((f"gen_ai.{name}", value) for name, value in given.items() if value is not None)

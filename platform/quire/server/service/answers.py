"""The size of answers: estimated and limited before generation; large answers are encoded in a worker thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import msgspec
from starlette.responses import Response

from quire.errors import BadRequest
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams, check_logprobs
from quire.server.jobs.generation import GenerationJob
from quire.server.service.models import ServedModel
from quire.server.service.service import Service
from quire.text.outputs.outputs import RequestOutput
from quire.types import ModelInfo, Params, Prompt

TOKEN_BYTES = 16
"""Estimated bytes of a token in an answer: its text, and its id if ids are requested."""

LOGPROB_BYTES = 80
"""Estimated bytes of a log-probability with the text of its token."""

PROMPT_LOGPROB_BYTES = 160
"""Estimated bytes of a prompt log-probability with its rank; doubled, because all of a prompt arrive at once."""

NUMBER_BYTES = 12
"""Estimated bytes of a number of an embedding or score."""

LARGE_ANSWER = 4096
"""Answers with more tokens and log-probabilities are encoded in a worker thread."""

GenerationParams: TypeAlias = SamplingParams | BeamSearchParams


@dataclass(frozen=True, kw_only=True)
class AnswerShape:
    """What determines the size of an answer.

    streamed: tokens are sent one by one and not kept. prompt_copies: how many times the answer contains the prompt
    log-probabilities. has_max_tokens: the client set the number of tokens.
    """

    num_prompts: int
    num_prompt_tokens: int
    streamed: bool
    prompt_copies: int = 1
    has_max_tokens: bool = True


def check_logprob_counts(served: ServedModel, name: str, logprobs: int | None, prompt_logprobs: int | None) -> None:
    """Raise `BadRequest` for more than `max_logprobs` per position. name: the field that `logprobs` comes from."""
    check_logprobs(name, logprobs, served.info.max_logprobs)
    check_logprobs("prompt_logprobs", prompt_logprobs, served.info.max_logprobs)


def check_token_vectors(params: PoolingParams, prompts: Sequence[Prompt], info: ModelInfo, max_bytes: int) -> None:
    """Raise `BadRequest` for token-wise embeddings or classes that may exceed `max_bytes` as JSON."""
    if not params.task.startswith("token_"):
        return
    embedding = params.dimensions or info.embedding_size or 1
    width = embedding if params.task == "token_embed" else max(1, len(info.labels))
    size = sum(len(prompt.token_ids) for prompt in prompts) * width * NUMBER_BYTES
    if size > max_bytes:
        raise BadRequest(
            f"The answer may have {size} bytes: {width} numbers for each token. At most {max_bytes} are sent "
            "(--max-response-bytes); send fewer or shorter texts.",
            "input",
        )


def bounded_params(params: GenerationParams, shape: AnswerShape, vocab_size: int, max_bytes: int) -> GenerationParams:
    """`params` for an answer of at most `max_bytes`; a `max_tokens` that the client did not set is reduced.

    Raises `BadRequest` for an answer that may be larger.
    """
    n, logprobs, prompt_logprobs = _counts(params)
    about_prompt = shape.num_prompt_tokens * _entries(prompt_logprobs, vocab_size) * PROMPT_LOGPROB_BYTES
    about_prompt *= shape.prompt_copies
    entries = _entries(logprobs, vocab_size)
    token = 0 if shape.streamed else n * shape.num_prompts * (TOKEN_BYTES + entries * LOGPROB_BYTES)
    max_tokens = params.max_tokens or 1
    size = about_prompt + token * max_tokens
    if size <= max_bytes:
        return params
    if not shape.has_max_tokens and about_prompt + token <= max_bytes:
        return replace(params, max_tokens=(max_bytes - about_prompt) // token)
    if about_prompt > max_bytes:
        param, what = "prompt_logprobs", f"log-probabilities of {shape.num_prompt_tokens} prompt tokens"
    else:
        param = "max_tokens" if logprobs is None else "logprobs"
        what = f"{n * shape.num_prompts} texts of {max_tokens} tokens" + (" with log-probabilities" if entries else "")
    raise BadRequest(
        f"The answer may become too large: {what} take about {size} bytes, and at most {max_bytes} are sent at once"
        " (--max-response-bytes). Ask for fewer, or stream the answer.",
        param,
    )


def is_large(params: Params, num_tokens: int, num_prompt_tokens: int, vocab: int) -> bool:
    """Whether an answer of `num_tokens` tokens takes long to encode. vocab: vocabulary size."""
    _, logprobs, prompt_logprobs = _counts(params)
    entries = num_tokens * (1 + _entries(logprobs, vocab)) + num_prompt_tokens * _entries(prompt_logprobs, vocab)
    return entries > LARGE_ANSWER


def _counts(params: Params) -> tuple[int, int | None, int | None]:
    if isinstance(params, SamplingParams):
        return params.n, params.logprobs, params.prompt_logprobs
    return (params.beam_width if isinstance(params, BeamSearchParams) else 1), None, None


def _entries(count: int | None, vocab_size: int) -> int:
    """Log-probabilities per position: of the token itself and of `count` others (-1: of the whole vocabulary)."""
    if count is None:
        return 0
    return 1 + (vocab_size if count < 0 else count)


ShapeAnswer: TypeAlias = Callable[[Sequence[RequestOutput]], dict[str, Any]]
"""Turns one output per prompt into the body of the response."""


async def run_job(service: Service, served: ServedModel, job: GenerationJob, shape: ShapeAnswer) -> Response:
    """Run a job to the end and return the whole answer."""
    await job.run(lambda number, delta: None)

    def encode() -> bytes:
        return msgspec.json.encode(shape(job.outputs()))

    num_tokens = sum(collector.num_output_tokens for collector in job.collectors)
    num_prompt = sum(len(request.prompt.token_ids) for request in job.requests)
    params = job.requests[0].params
    large = is_large(params, num_tokens, num_prompt, served.info.vocab_size)
    return Response(await service.encode(large, encode), media_type="application/json")

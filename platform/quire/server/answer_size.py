"""How large an answer may become, estimated before any of it is computed, and the bound on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from quire.errors import BadRequest
from quire.pooling import PoolingParams
from quire.sampling import BeamSearchParams, SamplingParams, check_logprobs
from quire.server.models import Served
from quire.types import ModelInfo, Params, Prompt

TOKEN_BYTES = 16
"""Of an answer's token: its text, and its id where ids are asked for."""

LOGPROB_BYTES = 80
"""Of one log-probability with its token's text."""

PROMPT_LOGPROB_BYTES = 160
"""The same of a prompt, with the rank; counted double, since all of a prompt's come at once."""

NUMBER_BYTES = 12
"""Of a number of a token's embedding or scores."""

Generating: TypeAlias = SamplingParams | BeamSearchParams


@dataclass(frozen=True, kw_only=True)
class AnswerShape:
    """What makes an answer large. streamed: tokens are sent as they come and not kept. prompt_copies: how often the
    answer has the prompt's log-probabilities. asked: the client said how many tokens it wants."""

    num_prompts: int
    num_prompt_tokens: int
    streamed: bool
    prompt_copies: int = 1
    asked: bool = True


def check_counts(served: Served, name: str, logprobs: int | None, prompt_logprobs: int | None) -> None:
    """Refuse more log-probabilities of a position than the model's `max_logprobs`. name: of the field of `logprobs`."""
    check_logprobs(name, logprobs, served.info.max_logprobs)
    check_logprobs("prompt_logprobs", prompt_logprobs, served.info.max_logprobs)


def check_token_vectors(params: PoolingParams, prompts: Sequence[Prompt], info: ModelInfo, max_bytes: int) -> None:
    """Raise `BadRequest` for embeddings or classes of each token that may be larger than `max_bytes` as JSON."""
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


def within_bound(params: Generating, shape: AnswerShape, vocab_size: int, max_bytes: int) -> Generating:
    """`params` of an answer that stays within `max_bytes`: tokens are fewer where the client left their number open.

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
    if not shape.asked and about_prompt + token <= max_bytes:
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
    """Whether an answer of so many tokens takes long to write."""
    _, logprobs, prompt_logprobs = _counts(params)
    entries = num_tokens * (1 + _entries(logprobs, vocab)) + num_prompt_tokens * _entries(prompt_logprobs, vocab)
    return entries > LARGE_ANSWER


LARGE_ANSWER = 4096
"""Tokens and log-probabilities from which an answer is written in a worker thread."""


def _counts(params: Params) -> tuple[int, int | None, int | None]:
    if isinstance(params, SamplingParams):
        return params.n, params.logprobs, params.prompt_logprobs
    return (params.beam_width if isinstance(params, BeamSearchParams) else 1), None, None


def _entries(count: int | None, vocab_size: int) -> int:
    """Log-probabilities of a position: the token's own and so many others."""
    if count is None:
        return 0
    return 1 + (vocab_size if count < 0 else count)

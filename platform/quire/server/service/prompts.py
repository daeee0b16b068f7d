"""Turns a validated body into engine requests: tokenizes prompts, checks lengths and token ids."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from starlette.types import Receive

from quire.errors import BadRequest, PromptTooLong
from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.server.http.sse import cancel_on_disconnect
from quire.server.jobs.active import ActiveJobs
from quire.server.schemas.pooling import CommonFields
from quire.server.schemas.sampling import SamplingFields
from quire.server.service.models import ServedModel
from quire.server.service.service import ResponseIds, Service
from quire.text.inputs.inputs import SHORT_TEXT, InputLimits, PromptInput, to_prompt, with_bad_words, with_prediction
from quire.text.inputs.numbered_markers import FIELD as MEDIA
from quire.text.tokenizer.long_texts import ShouldContinue
from quire.types import Prompt, Request

T = TypeVar("T")


async def run_text_work(service: Service, receive: Receive, size: int, work: Callable[[ShouldContinue], T]) -> T:
    """The result of `work` on texts; runs in a worker thread unless the texts are short.

    size: characters of all texts. Raises `ClientDisconnected` if the client disconnects first, `Overloaded` if too many
    texts wait.
    """
    if size <= SHORT_TEXT:
        return work(lambda: True)
    return await run_until_disconnect(service.inflight, receive, lambda: service.pools.texts.run(work))


async def tokenize_prompts(
    service: Service,
    receive: Receive,
    served: ServedModel,
    values: Sequence[PromptInput],
    fields: SamplingFields,
    max_tokens: int | None,
    add_special_tokens: bool,
    param: str,
) -> list[Prompt]:
    """Tokenize prompts, and truncate them as the request asks. Long prompts are tokenized in a worker thread."""
    limits = _input_limits(service, served, fields, max_tokens, param)

    def work(should_continue: ShouldContinue) -> list[Prompt]:
        limited = replace(limits, should_continue=should_continue)
        return [to_prompt(value, served.tokenizer, limited, add_special_tokens, served.media) for value in values]

    return await run_text_work(service, receive, sum(len(value) for value in values), work)


async def with_token_ids(
    service: Service, receive: Receive, served: ServedModel, params: SamplingParams | BeamSearchParams
) -> SamplingParams | BeamSearchParams:
    """`params` with the token ids of its texts. Raises `BadRequest` for token ids outside the vocabulary."""
    if isinstance(params, BeamSearchParams):
        return params
    check_token_ids(params, served.info.vocab_size)
    limits = InputLimits(max_model_len=served.info.max_model_len, max_chars=service.config.max_text_chars)

    def work(should_continue: ShouldContinue) -> SamplingParams:
        within = replace(limits, should_continue=should_continue)
        return with_prediction(with_bad_words(params, served.tokenizer), served.tokenizer, within)

    size = 2 * sum(map(len, params.bad_words or ())) + len(params.prediction or "")
    return await run_text_work(service, receive, size, work)


async def run_until_disconnect(inflight: ActiveJobs, receive: Receive, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work`; raise `ClientDisconnected` if the client disconnects first, `Overloaded` if the server shuts down."""
    with inflight.pending():
        return await cancel_on_disconnect(receive, work())


async def tokenize_chat_with_media(
    service: Service,
    served: ServedModel,
    text: str,
    media: Mapping[str, Any],
    fields: SamplingFields,
    max_tokens: int | None,
    add_special_tokens: bool,
) -> Prompt:
    """Tokenize the rendered conversation of a chat request with media; see `tokenize_with_media`."""
    limits = _input_limits(service, served, fields, max_tokens, "messages")
    return await tokenize_with_media(served, text, media, limits, add_special_tokens)


async def tokenize_with_media(
    served: ServedModel, text: str, media: Mapping[str, Any], limits: InputLimits, add_special_tokens: bool
) -> Prompt:
    """Fetch the media of a prompt, decode and preprocess them in worker threads, and tokenize the prompt.

    media: items by modality. Raises a `QuireError` if an item cannot be fetched, decoded or used.
    """
    if served.media is None:
        raise BadRequest(f"The model `{served.name}` takes text only.", limits.param)
    items = await served.media.fetch(media, limits.param)
    value = {"prompt": text, MEDIA: items}
    return await served.media.loader.run(
        lambda: to_prompt(value, served.tokenizer, limits, add_special_tokens, served.media), items
    )


def _input_limits(
    service: Service, served: ServedModel, fields: SamplingFields, max_tokens: int | None, param: str
) -> InputLimits:
    length = fields.truncate_prompt_tokens
    if length == -1:  # the longest that leaves space for the answer
        length = max(1, served.info.max_model_len - (max_tokens or 1))
    return InputLimits(
        max_model_len=served.info.max_model_len,
        vocab_size=served.info.vocab_size,
        truncate_prompt_tokens=length,
        truncation_side=fields.truncation_side or "left",
        param=param,
        max_chars=service.config.max_text_chars,
    )


def engine_requests(
    served: ServedModel,
    prompts: Sequence[Prompt],
    params: SamplingParams | BeamSearchParams,
    fields: SamplingFields,
    ids: ResponseIds,
    prefix: str,
) -> list[Request]:
    """One engine request per prompt. params: from `with_token_ids`. Raises `BadRequest` for too long prompts."""
    for prompt in prompts:
        check_context_length(len(prompt.token_ids), params.max_tokens, served.info.max_model_len)
    return requests_of(served, prompts, params, fields, ids, prefix)


def requests_of(
    served: ServedModel,
    prompts: Sequence[Prompt],
    params: SamplingParams | BeamSearchParams | PoolingParams,
    fields: SamplingFields | CommonFields,
    ids: ResponseIds,
    prefix: str,
) -> list[Request]:
    """One engine request per prompt, numbered after `prefix`."""
    return [
        Request(
            id=ids.engine_id(prefix, number),
            prompt=prompt,
            params=params,
            adapters=served.adapters,
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            client=ids.client,
            endpoint=ids.endpoint,
        )
        for number, prompt in enumerate(prompts)
    ]


def check_context_length(num_prompt: int, max_tokens: int | None, max_model_len: int) -> None:
    """Raise `BadRequest` if prompt and answer do not fit into the context."""
    num_left = max_model_len - num_prompt
    if num_left < 1:
        raise PromptTooLong(
            f"This model's maximum context length is {max_model_len} tokens, but the prompt has {num_prompt}; at least"
            " one must be left for the answer.",
            "prompt",
        )
    if max_tokens is not None and max_tokens > num_left:
        raise BadRequest(
            f"`max_tokens` is too large: {max_tokens}. This model's maximum context length is {max_model_len} tokens"
            f" and the prompt has {num_prompt}, so at most {num_left} are left.",
            "max_tokens",
        )


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Raise `BadRequest` for token ids outside the vocabulary."""
    given = {
        "logit_bias": params.logit_bias or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "stop_token_ids": params.stop_token_ids or (),
    }
    for name, ids in given.items():
        largest = max(ids, default=0)
        if largest >= vocab_size:
            raise BadRequest(f"`{name}` has token id {largest}, but the vocabulary ends at {vocab_size - 1}.", name)

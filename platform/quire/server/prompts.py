"""From a validated body to engine requests: tokens, parameters and the room there is for the answer."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from starlette.types import Receive

from quire.errors import BadRequest
from quire.sampling import BeamSearchParams, SamplingParams
from quire.server.inflight import InFlight
from quire.server.models import Served
from quire.server.schema_sampling import SamplingFields
from quire.server.service import Naming, Service
from quire.server.sse import unless_gone
from quire.text.inputs import SHORT_TEXT, InputLimits, PromptInput, to_prompt, with_bad_words
from quire.text.long_texts import Wanted
from quire.text.media import FIELD as MEDIA
from quire.types import Prompt, Request

T = TypeVar("T")


async def tokenizing(service: Service, receive: Receive, size: int, work: Callable[[Wanted], T]) -> T:
    """What `work` makes of texts, in a worker thread unless they are short; it ends with the client (`ClientGone`).

    size: characters of all texts. Raises `Overloaded` when too many texts wait.
    """
    if size <= SHORT_TEXT:
        return work(lambda: True)
    return await while_wanted(service.inflight, receive, lambda: service.pools.texts.run(work))


async def tokenized(
    service: Service,
    receive: Receive,
    served: Served,
    values: Sequence[PromptInput],
    fields: SamplingFields,
    max_tokens: int | None,
    add_special_tokens: bool,
    param: str,
) -> list[Prompt]:
    """Prompts as ids, cut as the request asks. Long ones are tokenized in a worker thread."""
    limits = _limits(service, served, fields, max_tokens, param)

    def work(wanted: Wanted) -> list[Prompt]:
        within = replace(limits, wanted=wanted)
        return [to_prompt(value, served.tokenizer, within, add_special_tokens, served.media) for value in values]

    return await tokenizing(service, receive, sum(len(value) for value in values), work)


async def spelled(
    service: Service, receive: Receive, served: Served, params: SamplingParams | BeamSearchParams
) -> SamplingParams | BeamSearchParams:
    """`params` checked against the vocabulary, with the ids of its bad words."""
    if isinstance(params, BeamSearchParams):
        return params
    check_token_ids(params, served.info.vocab_size)
    size = 2 * sum(map(len, params.bad_words or ()))
    return await tokenizing(service, receive, size, lambda _: with_bad_words(params, served.tokenizer))


async def while_wanted(inflight: InFlight, receive: Receive, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What `work` gives, which may wait long for media; it ends with the client (`ClientGone`) or the server
    (`Overloaded`)."""
    with inflight.coming():
        return await unless_gone(receive, work())


async def tokenized_with_media(
    service: Service,
    served: Served,
    text: str,
    media: Mapping[str, Any],
    fields: SamplingFields,
    max_tokens: int | None,
    add_special_tokens: bool,
) -> Prompt:
    """The prompt of a conversation with media as ids: these are fetched, then decoded and mapped in threads for that.

    media: items by modality. Raises what fetching, decoding and placing them raises.
    """
    limits = _limits(service, served, fields, max_tokens, "messages")
    return await with_media(served, text, media, limits, add_special_tokens)


async def with_media(
    served: Served, text: str, media: Mapping[str, Any], limits: InputLimits, add_special_tokens: bool
) -> Prompt:
    """The same within limits that are known."""
    if served.media is None:
        raise BadRequest(f"The model `{served.name}` takes text only.", limits.param)
    items = await served.media.fetched(media, limits.param)
    value = {"prompt": text, MEDIA: items}
    return await served.media.intake.run(
        lambda: to_prompt(value, served.tokenizer, limits, add_special_tokens, served.media), items
    )


def _limits(
    service: Service, served: Served, fields: SamplingFields, max_tokens: int | None, param: str
) -> InputLimits:
    count = fields.truncate_prompt_tokens
    if count == -1:  # as much as leaves room for the answer
        count = max(1, served.info.max_model_len - (max_tokens or 1))
    return InputLimits(
        max_model_len=served.info.max_model_len,
        vocab_size=served.info.vocab_size,
        truncate_prompt_tokens=count,
        truncation_side=fields.truncation_side or "left",
        param=param,
        max_chars=service.config.max_text_chars,
    )


def engine_requests(
    served: Served,
    prompts: Sequence[Prompt],
    params: SamplingParams | BeamSearchParams,
    fields: SamplingFields,
    naming: Naming,
    prefix: str,
) -> list[Request]:
    """One request per prompt, of parameters that were `spelled`; raises `BadRequest` for too little room."""
    requests = []
    for number, prompt in enumerate(prompts):
        check_room(len(prompt.token_ids), params.max_tokens, served.info.max_model_len)
        requests.append(
            Request(
                id=naming.engine_id(prefix, number),
                prompt=prompt,
                params=params,
                adapters=served.adapters,
                priority=fields.priority,
                cache_salt=fields.cache_salt,
                client=naming.client,
            )
        )
    return requests


def check_room(num_prompt: int, max_tokens: int | None, max_model_len: int) -> None:
    """Refuse what cannot fit into the context."""
    room = max_model_len - num_prompt
    if room < 1:
        raise BadRequest(
            f"This model's maximum context length is {max_model_len} tokens, but the prompt has {num_prompt}; at least"
            " one must be left for the answer.",
            "prompt",
        )
    if max_tokens is not None and max_tokens > room:
        raise BadRequest(
            f"`max_tokens` is too large: {max_tokens}. This model's maximum context length is {max_model_len} tokens"
            f" and the prompt has {num_prompt}, so at most {room} are left.",
            "max_tokens",
        )


def check_token_ids(params: SamplingParams, vocab_size: int) -> None:
    """Refuse token ids that the model does not have."""
    given = {
        "logit_bias": params.logit_bias or (),
        "allowed_token_ids": params.allowed_token_ids or (),
        "stop_token_ids": params.stop_token_ids or (),
    }
    for name, ids in given.items():
        largest = max(ids, default=0)
        if largest >= vocab_size:
            raise BadRequest(f"`{name}` has token id {largest}, but the vocabulary ends at {vocab_size - 1}.", name)

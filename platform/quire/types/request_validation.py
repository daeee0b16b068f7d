"""Checks a request against the model: its task, token ids, lengths and media.

The scheduler checks its own limits (`SchedulerLimits.max_tokens_for`).
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.errors import BadRequest
from quire.params.pooling import PoolingParams, tasks_listed
from quire.params.sampling import SamplingParams
from quire.types import Media, ModelInfo, Prompt, Request
from quire.types.encoder_input import EncoderInputInfo


def validate_request(request: Request, info: ModelInfo) -> None:
    """Raise BadRequest unless the model can process the request."""
    prompt = request.prompt
    _check_task(request, info)
    _check_token_types(prompt, info)
    _check_ids("prompt", prompt.token_ids, info.vocab_size)
    _check_length(request, info)
    _check_media(prompt.media, len(prompt.token_ids), info)
    if info.encoder_input is not None:
        _check_encoder_input(request, info.encoder_input)
    if isinstance(request.params, SamplingParams):
        _check_sampling_ids(request.params, info.vocab_size)


def _check_task(request: Request, info: ModelInfo) -> None:
    if isinstance(request.params, PoolingParams):
        check_pooling(request.params, info)
    else:
        check_task("generate", info)


def check_task(task: str, info: ModelInfo, param: str = "model") -> None:
    """Raise `BadRequest`, naming the field `param`, for a task that is not in `ModelInfo.tasks`."""
    if task not in info.tasks:
        raise BadRequest(
            f"The model `{info.name}` cannot do `{task}`. It can do: {tasks_listed(info.tasks)}.",
            param,
        )


def check_pooling(params: PoolingParams, info: ModelInfo) -> None:
    """Raise `BadRequest` for a task that the model cannot do, or dimensions that it does not offer."""
    check_task(params.task, info)
    size, allowed = params.dimensions, info.dimensions
    if size is None:
        return
    if params.task not in ("embed", "token_embed"):
        raise BadRequest(f"`dimensions` has no meaning for the task {params.task}.", "dimensions")
    if allowed is None:
        raise BadRequest(
            f"`dimensions` cannot be chosen: the model `{info.name}` was not trained to give fewer than"
            f" {info.embedding_size} (matryoshka).",
            "dimensions",
        )
    if (allowed and size not in allowed) or (info.embedding_size is not None and size > info.embedding_size):
        choices = f"one of {', '.join(map(str, allowed))}" if allowed else f"from 1 to {info.embedding_size}"
        raise BadRequest(f"`dimensions` must be {choices} for the model `{info.name}`, got {size}.", "dimensions")


def _check_token_types(prompt: Prompt, info: ModelInfo) -> None:
    types = prompt.token_types
    if not types:
        return
    if not info.token_types:
        raise BadRequest(f"The model `{info.name}` has no token types.", "prompt")
    if len(types) != len(prompt.token_ids) or not set(types) <= {0, 1}:
        raise BadRequest("Token types must be 0 or 1, one for each token of the prompt.", "prompt")


def _check_media(media: Iterable[Media], prompt_len: int, info: ModelInfo) -> None:
    """Media must be of known modalities, in order without overlap, within the prompt."""
    free = 0
    for item in media:
        if item.modality not in info.modalities:
            takes = " and ".join(("text", *info.modalities)) if info.modalities else "text only"
            raise BadRequest(f"The model `{info.name}` takes {takes}, not {item.modality:.40}.", "prompt")
        end = item.start + item.length
        if not free <= item.start < end <= prompt_len:
            raise BadRequest(
                f"A medium is at positions {item.start} to {end - 1}; it must be within the {prompt_len} tokens of "
                "the prompt, after the one before it.",
                "prompt",
            )
        free = end
        _check_positions(item, info.position_axes)
        _check_rows(item)


def _check_encoder_input(request: Request, source: EncoderInputInfo) -> None:
    """The prompt must begin with the medium that the model reads by cross-attention, followed by text."""
    media, name = request.prompt.media, source.modality
    if len(media) != 1:
        raise BadRequest(
            f"A prompt of this model begins with one {name} (`multi_modal_data`), and has text after it; this one has"
            f" {len(media) or 'none'}.",
            "prompt",
        )
    (item,) = media
    if source.multiple is not None and item.length > source.length:
        raise BadRequest(
            f"The {name} has {item.length} tokens; this model reads at most {source.length}. Please shorten it.",
            "prompt",
        )
    length = source.length if source.multiple is None else item.length
    if (item.start, item.length) != (0, length) or item.positions is not None or item.rows_at is not None:
        raise BadRequest(
            f"The {name} of a prompt must be at positions 0 to {length - 1}, in order; it is at"
            f" {item.start} to {item.start + item.length - 1}.",
            "prompt",
        )
    if len(request.prompt.token_ids) <= source.reserved_for(length):
        raise BadRequest(f"The prompt has no text after the {name}; at least one token is needed.", "prompt")
    if isinstance(request.params, SamplingParams) and request.params.prompt_logprobs is not None:
        raise BadRequest(
            f"This model does not support `prompt_logprobs`: its prompts begin with {name}, which has none.",
            "prompt_logprobs",
        )


def _check_positions(item: Media, axes: int) -> None:
    given = item.positions
    if given is None:
        return
    if given.shape != (axes, item.length) or given.dtype.kind not in "iu" or given.min() < 0:
        raise BadRequest(
            f"Positions of {item.modality} must be whole numbers from 0 on, of shape {[axes, item.length]}; got"
            f" {given.dtype} {list(given.shape)}.",
            "prompt",
        )


def _check_rows(item: Media) -> None:
    at = item.rows_at
    if at is None:
        return
    if at.ndim != 1 or not len(at) or at[0] < 0 or at[-1] >= item.length or (at[1:] <= at[:-1]).any():
        raise BadRequest(
            f"The rows of {item.modality} must be at different positions from 0 to {item.length - 1}, in order.",
            "prompt",
        )


def _check_ids(param: str, token_ids: Iterable[int], vocab_size: int) -> None:
    import numpy as np  # not needed to start the server

    ids = np.asarray(token_ids if isinstance(token_ids, list | tuple) else list(token_ids))
    if not ids.size:
        return
    if ids.dtype.kind not in "iu" or ids.ndim != 1:
        raise BadRequest(f"`{param}` must be a list of token ids, which are integers.", param)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise BadRequest(f"`{param}` has token id {wrong}; the vocabulary has ids from 0 to {vocab_size - 1}.", param)


def _check_sampling_ids(params: SamplingParams, vocab_size: int) -> None:
    _check_ids("stop_token_ids", params.stop_token_ids or (), vocab_size)
    _check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    _check_ids("logit_bias", list(params.logit_bias or ()), vocab_size)
    if any(not word for word in params.bad_word_ids):
        raise BadRequest("`bad_words` has a word without tokens.", "bad_words")
    _check_ids("prediction_ids", params.prediction_ids, vocab_size)
    _check_ids("bad_words", [token for word in params.bad_word_ids for token in word], vocab_size)


def _check_length(request: Request, info: ModelInfo) -> None:
    prompt_len, max_tokens = len(request.prompt.token_ids), request.params.max_tokens
    if prompt_len == 0:
        raise BadRequest("The prompt has no tokens; at least one is needed.", "prompt")
    limit = f"This model's maximum context length is {info.max_model_len} tokens"
    if prompt_len + (max_tokens != 0) > info.max_model_len:
        raise BadRequest(f"{limit}. However, your prompt has {prompt_len} tokens. Please shorten it.", "prompt")
    if max_tokens is not None and prompt_len + max_tokens > info.max_model_len:
        raise BadRequest(
            f"{limit}. However, you requested {prompt_len + max_tokens} tokens: {prompt_len} in the prompt and "
            f"{max_tokens} for the output. Please lower max_tokens or shorten the prompt.",
            "max_tokens",
        )

"""Converts the inputs of users to those of the engine: prompts and bad words to token ids.

Invalid input raises `BadRequest`, which names the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from quire.errors import BadRequest, PromptTooLong
from quire.params.sampling import SamplingParams
from quire.text.inputs.media_use import media_use
from quire.text.inputs.multimodal import Encode, MultimodalProcessor
from quire.text.inputs.numbered_markers import FIELD as MEDIA
from quire.text.tokenizer.long_texts import LONG_TEXT, ShouldContinue
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Media, MediaUse, Prompt, Request

PromptInput: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}; the maps may have "multi_modal_data"."""

MAX_CHARS_PER_TOKEN = 256
"""Texts with more characters per token of the context than this are refused before they are tokenized."""

SHORT_TEXT = 4096
"""Texts of up to this number of characters are tokenized holding the GIL, which is faster."""

_KEYS = frozenset({"prompt", "prompt_token_ids", MEDIA})
_FORMS = 'a string, a list of token ids, {"prompt": string} or {"prompt_token_ids": list of token ids}'


@dataclass(frozen=True, kw_only=True)
class InputLimits:
    """Limits of a prompt, and how it is truncated.

    truncate_prompt_tokens: number of tokens to keep, -1 = `max_model_len`; None = do not truncate. truncation_side: the
    side that is cut off. param: the field that errors name. max_chars: limit of one text before truncation.
    should_continue: called while a long text is tokenized; if it returns False, `TokenizationCancelled` is raised.
    """

    max_model_len: int | None = None
    vocab_size: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    param: str = "prompt"
    max_chars: int | None = None
    should_continue: ShouldContinue = lambda: True

    def __post_init__(self) -> None:
        count = self.truncate_prompt_tokens
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < -1 or count == 0):
            raise BadRequest(
                f"`truncate_prompt_tokens` must be at least 1, or -1 for the longest possible; got {count!r:.40}.",
                "truncate_prompt_tokens",
            )
        if self.truncation_side not in ("left", "right"):
            raise BadRequest(
                f"`truncation_side` must be left or right, got {self.truncation_side!r:.40}.", "truncation_side"
            )

    @property
    def max_tokens(self) -> int | None:
        """The number of tokens that a prompt can have after truncation; None = no limit."""
        if self.truncate_prompt_tokens in (None, -1):
            return self.max_model_len
        return self.truncate_prompt_tokens


def to_prompt(
    value: PromptInput,
    tokenizer: Tokenizer | None,
    limits: InputLimits | None = None,
    add_special_tokens: bool = True,
    multimodal: MultimodalProcessor | None = None,
) -> Prompt:
    """Build a `Prompt` from any form of input.

    A text that already begins with the begin-of-text token does not get a second one. multimodal: the media processor
    of the model, None = it takes text only. Raises `BadRequest` for other types, empty prompts, ids outside the
    vocabulary, texts that are too long and media that do not match their markers; PluginFailed when a mapper fails.
    """
    limits = limits or InputLimits()
    text, ids = _text_and_ids(value, limits.param)
    media: tuple[Media, ...] = ()
    used = MediaUse()

    def encode(part: str, special: bool) -> list[int]:
        return _tokenize(part, tokenizer, limits, special and add_special_tokens)

    if multimodal is not None and multimodal.encodes_text and not (isinstance(value, Mapping) and value.get(MEDIA)):
        return _encoder_prompt(text, ids, encode, limits, multimodal)
    if isinstance(value, Mapping) and value.get(MEDIA):
        if multimodal is None:
            raise BadRequest(f"This model takes text only, but `{MEDIA}` was given.", limits.param)
        ids, media = multimodal.process(text, ids, value[MEDIA], encode, limits.param)
        used = media_use(value[MEDIA])
        _reject_truncation(ids, limits)
    else:
        ids = encode(text or "", True) if ids is None else ids
        if multimodal is not None:
            multimodal.reject_markers(ids, limits.param)
    ids = truncate(ids, limits)
    check_length(ids, limits)
    return Prompt(token_ids=tuple(ids), text=text, media=media, media_use=used)


def _encoder_prompt(
    text: str | None, ids: list[int] | None, encode: Encode, limits: InputLimits, multimodal: MultimodalProcessor
) -> Prompt:
    """The prompt of an encoder-decoder for text: what is given is for the encoder."""
    ids = truncate(encode(text or "", True) if ids is None else ids, limits)
    check_length(ids, limits)
    ids, media = multimodal.process_encoder_prompt(ids, limits.param)
    check_length(ids, limits)
    return Prompt(token_ids=tuple(ids), text=text, media=media)


def check_length(ids: Sequence[int], limits: InputLimits) -> None:
    """Raise `BadRequest` for a prompt without tokens or with more tokens than the context."""
    if not ids:
        raise BadRequest(f"`{limits.param}` must not be empty.", limits.param)
    if limits.max_model_len is not None and len(ids) > limits.max_model_len:
        raise too_long(len(ids), limits)


def _reject_truncation(ids: list[int], limits: InputLimits) -> None:
    """Raise `BadRequest` if a prompt with media is too long, because truncation could split a medium."""
    max_tokens = limits.max_tokens
    if limits.truncate_prompt_tokens is not None and max_tokens is not None and len(ids) > max_tokens:
        raise BadRequest(
            f"The prompt has {len(ids)} tokens and contains media, so it cannot be cut to {max_tokens}.",
            "truncate_prompt_tokens",
        )


def too_long(count: int, limits: InputLimits) -> PromptTooLong:
    """The error for a prompt of `count` tokens that exceeds the context."""
    return PromptTooLong(
        f"This model's maximum context length is {limits.max_model_len} tokens, but the prompt has {count}."
        " Please shorten it.",
        limits.param,
    )


def _text_and_ids(value: Any, param: str) -> tuple[str | None, list[int] | None]:
    """The text and the ids of a prompt; at least one of them is not None."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, Mapping):
        return _text_and_ids_of_mapping(value, param)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return None, check_ids(value, param)
    raise BadRequest(f"`{param}` must be {_FORMS}; got {type(value).__name__}.", param)


def _text_and_ids_of_mapping(value: Mapping[str, Any], param: str) -> tuple[str | None, list[int] | None]:
    unknown = sorted(str(key) for key in value if key not in _KEYS)
    if unknown or not value:
        raise BadRequest(f"`{param}` must be {_FORMS}; got the keys {unknown or '{}'}.", param)
    text, ids = value.get("prompt"), value.get("prompt_token_ids")
    if text is not None and not isinstance(text, str):
        raise BadRequest(f"`{param}`: `prompt` must be a string, got {type(text).__name__}.", param)
    if text is None and ids is None:
        raise BadRequest(f"`{param}` must be {_FORMS}; got nothing.", param)
    return text, None if ids is None else check_ids(ids, param)


def check_ids(ids: Any, param: str) -> list[int]:
    """`ids` as a list. Raises `BadRequest` if they are not token ids."""
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes | bytearray):
        raise BadRequest(f"`{param}` must be a list of token ids, got {type(ids).__name__}.", param)
    kinds = set(map(type, ids))  # faster than a loop in Python over many ids
    if any(kind is bool or not issubclass(kind, int) for kind in kinds) or min(ids, default=0) < 0:
        wrong = next(i for i in ids if isinstance(i, bool) or not isinstance(i, int) or i < 0)
        raise BadRequest(f"`{param}`: token ids must be integers of at least 0, got {wrong!r:.40}.", param)
    return list(ids)


def _tokenize(text: str, tokenizer: Tokenizer | None, limits: InputLimits, add_special_tokens: bool) -> list[int]:
    if tokenizer is None:
        raise BadRequest(f"`{limits.param}` must be token ids: this model has no tokenizer.", limits.param)
    text = truncate_chars(text, tokenizer, limits)
    if len(text) <= SHORT_TEXT:
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    else:
        ids = encode_long_text(text, tokenizer, limits, add_special_tokens)
    return drop_double_bos(ids, tokenizer) if add_special_tokens else ids


def encode_long_text(text: str, tokenizer: Tokenizer, limits: InputLimits, add_special_tokens: bool) -> list[int]:
    """The ids of a long text. Unless it is truncated, raises `BadRequest` as soon as it exceeds the context."""
    max_tokens = None if limits.truncate_prompt_tokens is not None else limits.max_model_len
    ids = tokenizer.encode_long(text, add_special_tokens, max_tokens, limits.should_continue)
    if max_tokens is not None and len(text) > LONG_TEXT and len(ids) > max_tokens:
        raise PromptTooLong(
            f"This model's maximum context length is {max_tokens} tokens, but the prompt has more, in {len(text)}"
            " characters. Please shorten it.",
            limits.param,
        )
    return ids


def truncate_chars(text: str, tokenizer: Tokenizer, limits: InputLimits) -> str:
    """Cut off characters of `text` that truncation would remove anyway. Raises `BadRequest` for far too long texts."""
    if limits.max_chars is not None and len(text) > limits.max_chars:
        raise BadRequest(
            f"`{limits.param}` has {len(text)} characters; at most {limits.max_chars} are accepted (--max-text-chars).",
            limits.param,
        )
    text = _within_context(text, limits)
    max_tokens = limits.max_tokens
    if len(text) > LONG_TEXT and max_tokens is not None and limits.truncate_prompt_tokens is not None:
        return tokenizer.shorten(text, max_tokens, limits.truncation_side, limits.should_continue)
    return text


def _within_context(text: str, limits: InputLimits) -> str:
    max_tokens = limits.max_tokens
    if max_tokens is None or len(text) <= max_tokens * MAX_CHARS_PER_TOKEN:
        return text
    max_chars = max_tokens * MAX_CHARS_PER_TOKEN
    if limits.truncate_prompt_tokens is None:
        raise PromptTooLong(
            f"`{limits.param}` has {len(text)} characters; with this model's maximum context length of"
            f" {limits.max_model_len} tokens at most {max_chars} are accepted.",
            limits.param,
        )
    return text[-max_chars:] if limits.truncation_side == "left" else text[:max_chars]


def drop_double_bos(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """`ids` without the second of two begin-of-text tokens at the begin."""
    if tokenizer.bos_id is not None and ids[:2] == [tokenizer.bos_id] * 2:
        return ids[1:]
    return ids


def truncate(ids: list[int], limits: InputLimits) -> list[int]:
    """Truncate `ids`. Raises `BadRequest` for ids outside the vocabulary."""
    if limits.vocab_size is not None and (largest := max(ids, default=0)) >= limits.vocab_size:
        raise BadRequest(
            f"`{limits.param}` has token id {largest}, but the vocabulary ends at {limits.vocab_size - 1}.",
            limits.param,
        )
    if limits.truncate_prompt_tokens is None:
        return ids
    check_truncation(limits)
    max_tokens = limits.max_tokens
    if max_tokens is None or len(ids) <= max_tokens:
        return ids
    return ids[-max_tokens:] if limits.truncation_side == "left" else ids[:max_tokens]


def check_truncation(limits: InputLimits) -> None:
    """Raise `BadRequest` if the truncated length exceeds the context."""
    count = limits.truncate_prompt_tokens
    if count is not None and limits.max_model_len is not None and count > limits.max_model_len:
        raise BadRequest(
            f"`truncate_prompt_tokens` ({count}) is above the maximum context length ({limits.max_model_len}).",
            "truncate_prompt_tokens",
        )


def with_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """`params` with the ids of its bad words, each as it is and after a space."""
    if not params.bad_words:
        return params
    texts = [text for word in params.bad_words for text in (word, " " + word.lstrip())]
    found = dict.fromkeys(tuple(ids) for ids in tokenizer.encode_batch(texts, add_special_tokens=False) if ids)
    return replace(params, bad_word_ids=tuple(found))


def with_prediction(params: SamplingParams, tokenizer: Tokenizer | None, limits: InputLimits) -> SamplingParams:
    """`params` with the ids of its prediction instead of the text, at most as many as fit into the context."""
    if params.prediction is None:
        return params
    limits = replace(limits, truncate_prompt_tokens=-1, truncation_side="right", param="prediction")
    ids = truncate(_tokenize(params.prediction, tokenizer, limits, False), limits)
    return replace(params, prediction=None, prediction_ids=tuple(ids))


def to_engine_request(request: Request) -> Request:
    """The request for the engine: with best_of > n it asks for log-probabilities, which select the best completions."""
    params = request.params
    if not isinstance(params, SamplingParams) or params.num_seqs == params.n or params.logprobs is not None:
        return request
    return replace(request, params=replace(params, logprobs=0))

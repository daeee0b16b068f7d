"""From what users write to what the engine takes: prompts to ids, words to avoid to ids.

Whatever is wrong raises `BadRequest` naming the field. It knows no chat messages (`quire.text.chat`)
and no limits of the engine beyond those it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from quire.errors import BadRequest
from quire.sampling import SamplingParams
from quire.text.long_texts import LONG_TEXT, Wanted
from quire.text.media import FIELD as MEDIA, MediaInputs
from quire.text.tokenizer import Tokenizer
from quire.types import Media, Prompt, Request

PromptInput: TypeAlias = str | Sequence[int] | Mapping[str, Any]
"""A text, token ids, {"prompt": text} or {"prompt_token_ids": ids}, these two perhaps with "multi_modal_data"."""

MAX_CHARS_PER_TOKEN = 256
"""A text longer than this many characters per token of the context is refused before it is tokenized."""

SHORT_TEXT = 4096
"""Characters of a text that is tokenized at once, without letting other threads run, which costs time."""

_KEYS = frozenset({"prompt", "prompt_token_ids", MEDIA})
_FORMS = 'a string, a list of token ids, {"prompt": string} or {"prompt_token_ids": list of token ids}'


@dataclass(frozen=True, kw_only=True)
class InputLimits:
    """What a prompt must keep to, and how it is cut.

    truncate_prompt_tokens: keep at most so many tokens, -1 = `max_model_len`; None = never cut.
    truncation_side: the side that is cut off. param: the field that errors name. max_chars: of one text, whatever of
    it is kept. wanted: asked while a long text is tokenized; `Unwanted` is raised when it says no.
    """

    max_model_len: int | None = None
    vocab_size: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] = "left"
    param: str = "prompt"
    max_chars: int | None = None
    wanted: Wanted = lambda: True

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
    def most_tokens(self) -> int | None:
        """How many tokens of a prompt can be used; None = any number."""
        if self.truncate_prompt_tokens in (None, -1):
            return self.max_model_len
        return self.truncate_prompt_tokens


def to_prompt(
    value: PromptInput,
    tokenizer: Tokenizer | None,
    limits: InputLimits | None = None,
    add_special_tokens: bool = True,
    media_inputs: MediaInputs | None = None,
) -> Prompt:
    """One prompt in any of its forms as ids.

    A text that already begins with the begin-of-text token does not get a second one. media_inputs: of the
    model, None = it takes text only. Raises `BadRequest` for other types, empty prompts, ids outside the
    vocabulary, texts too long and media that do not fit their markers; PluginFailed when a mapper fails.
    """
    limits = limits or InputLimits()
    text, ids = _parts(value, limits.param)
    media: tuple[Media, ...] = ()

    def encode(some: str, special: bool) -> list[int]:
        return _tokenize(some, tokenizer, limits, special and add_special_tokens)

    if isinstance(value, Mapping) and value.get(MEDIA):
        if media_inputs is None:
            raise BadRequest(f"This model takes text only, but `{MEDIA}` was given.", limits.param)
        ids, media = media_inputs.place(text, ids, value[MEDIA], encode, limits.param)
        _refuse_to_cut(ids, limits)
    else:
        ids = encode(text or "", True) if ids is None else ids
        if media_inputs is not None:
            media_inputs.check_unmarked(ids, limits.param)
    ids = cut(ids, limits)
    check_length(ids, limits)
    return Prompt(token_ids=tuple(ids), text=text, media=media)


def check_length(ids: Sequence[int], limits: InputLimits) -> None:
    """`BadRequest` for a prompt without tokens, or with more than the model can read."""
    if not ids:
        raise BadRequest(f"`{limits.param}` must not be empty.", limits.param)
    if limits.max_model_len is not None and len(ids) > limits.max_model_len:
        raise too_long(len(ids), limits)


def _refuse_to_cut(ids: list[int], limits: InputLimits) -> None:
    """A cut could go through a medium, so prompts with media are taken whole or not at all."""
    most = limits.most_tokens
    if limits.truncate_prompt_tokens is not None and most is not None and len(ids) > most:
        raise BadRequest(
            f"The prompt has {len(ids)} tokens and media in it, so it cannot be cut to {most}.",
            "truncate_prompt_tokens",
        )


def too_long(count: int, limits: InputLimits) -> BadRequest:
    """The error for a prompt of `count` tokens that does not fit."""
    return BadRequest(
        f"This model's maximum context length is {limits.max_model_len} tokens, but the prompt has {count}."
        " Please shorten it.",
        limits.param,
    )


def _parts(value: Any, param: str) -> tuple[str | None, list[int] | None]:
    """Text and ids of a prompt; at least one is not None."""
    if isinstance(value, str):
        return value, None
    if isinstance(value, Mapping):
        return _mapped(value, param)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return None, check_ids(value, param)
    raise BadRequest(f"`{param}` must be {_FORMS}; got {type(value).__name__}.", param)


def _mapped(value: Mapping[str, Any], param: str) -> tuple[str | None, list[int] | None]:
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
    """`ids` as a list, if it is one of token ids; `BadRequest` otherwise."""
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes | bytearray):
        raise BadRequest(f"`{param}` must be a list of token ids, got {type(ids).__name__}.", param)
    kinds = set(map(type, ids))  # there may be many: no loop in Python unless one is wrong
    if any(kind is bool or not issubclass(kind, int) for kind in kinds) or min(ids, default=0) < 0:
        wrong = next(i for i in ids if isinstance(i, bool) or not isinstance(i, int) or i < 0)
        raise BadRequest(f"`{param}`: token ids must be integers of at least 0, got {wrong!r:.40}.", param)
    return list(ids)


def _tokenize(text: str, tokenizer: Tokenizer | None, limits: InputLimits, add_special_tokens: bool) -> list[int]:
    if tokenizer is None:
        raise BadRequest(f"`{limits.param}` must be token ids: this model has no tokenizer.", limits.param)
    text = worth_tokenizing(text, tokenizer, limits)
    if len(text) <= SHORT_TEXT:
        ids = tokenizer.encode(text, add_special_tokens=add_special_tokens)
    else:
        ids = encoded(text, tokenizer, limits, add_special_tokens)
    return begun_once(ids, tokenizer) if add_special_tokens else ids


def encoded(text: str, tokenizer: Tokenizer, limits: InputLimits, add_special_tokens: bool) -> list[int]:
    """The ids of a long text; `BadRequest` as soon as there are more than the model can read, unless it may be cut."""
    most = None if limits.truncate_prompt_tokens is not None else limits.max_model_len
    ids = tokenizer.encode_long(text, add_special_tokens, most, limits.wanted)
    if most is not None and len(text) > LONG_TEXT and len(ids) > most:
        raise BadRequest(
            f"This model's maximum context length is {most} tokens, but the prompt has more, in {len(text)} characters."
            " Please shorten it.",
            limits.param,
        )
    return ids


def worth_tokenizing(text: str, tokenizer: Tokenizer, limits: InputLimits) -> str:
    """`text`, without what could not be among the tokens that are kept; `BadRequest` for far too many characters."""
    if limits.max_chars is not None and len(text) > limits.max_chars:
        raise BadRequest(
            f"`{limits.param}` has {len(text)} characters; at most {limits.max_chars} are accepted (--max-text-chars).",
            limits.param,
        )
    text = _within_context(text, limits)
    most = limits.most_tokens
    if len(text) > LONG_TEXT and most is not None and limits.truncate_prompt_tokens is not None:
        return tokenizer.shortened(text, most, limits.truncation_side, limits.wanted)
    return text


def _within_context(text: str, limits: InputLimits) -> str:
    most = limits.most_tokens
    if most is None or len(text) <= most * MAX_CHARS_PER_TOKEN:
        return text
    longest = most * MAX_CHARS_PER_TOKEN
    if limits.truncate_prompt_tokens is None:
        raise BadRequest(
            f"`{limits.param}` has {len(text)} characters; with this model's maximum context length of"
            f" {limits.max_model_len} tokens at most {longest} are accepted.",
            limits.param,
        )
    return text[-longest:] if limits.truncation_side == "left" else text[:longest]


def begun_once(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    """`ids` of a text that may have begun with the begin-of-text token before it got one."""
    if tokenizer.bos_id is not None and ids[:2] == [tokenizer.bos_id] * 2:
        return ids[1:]
    return ids


def cut(ids: list[int], limits: InputLimits) -> list[int]:
    """As many of `ids` as are kept; `BadRequest` for ids outside the vocabulary."""
    if limits.vocab_size is not None and (largest := max(ids, default=0)) >= limits.vocab_size:
        raise BadRequest(
            f"`{limits.param}` has token id {largest}, but the vocabulary ends at {limits.vocab_size - 1}.",
            limits.param,
        )
    if limits.truncate_prompt_tokens is None:
        return ids
    check_truncation(limits)
    most = limits.most_tokens
    if most is None or len(ids) <= most:
        return ids
    return ids[-most:] if limits.truncation_side == "left" else ids[:most]


def check_truncation(limits: InputLimits) -> None:
    """`BadRequest` when prompts are to be cut to more than the model can read."""
    count = limits.truncate_prompt_tokens
    if count is not None and limits.max_model_len is not None and count > limits.max_model_len:
        raise BadRequest(
            f"`truncate_prompt_tokens` ({count}) is above the maximum context length ({limits.max_model_len}).",
            "truncate_prompt_tokens",
        )


def with_bad_words(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """`params` with the ids that spell its bad words, each at the begin of a text and after a space."""
    if not params.bad_words:
        return params
    texts = [text for word in params.bad_words for text in (word, " " + word.lstrip())]
    found = dict.fromkeys(tuple(ids) for ids in tokenizer.encode_batch(texts, add_special_tokens=False) if ids)
    return replace(params, bad_word_ids=tuple(found))


def for_engine(request: Request) -> Request:
    """What the engine gets: with best_of > n it reports log-probabilities, for the choice of the best."""
    params = request.params
    if not isinstance(params, SamplingParams) or params.num_seqs == params.n or params.logprobs is not None:
        return request
    return replace(request, params=replace(params, logprobs=0))

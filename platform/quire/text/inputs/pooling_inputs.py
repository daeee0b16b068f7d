"""Builds prompts for pooling from texts, token ids and pairs of texts, many at a time.

Unlike a prompt for generation, a truncated text keeps its special tokens, because poolers read them. Invalid input
raises `BadRequest`, which names the field and the item.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from quire.errors import BadRequest
from quire.text.inputs.inputs import (
    InputLimits,
    check_ids,
    check_length,
    check_truncation,
    drop_double_bos,
    encode_long_text,
    truncate,
    truncate_chars,
)
from quire.text.tokenizer.long_texts import LONG_TEXT, TokenizationCancelled
from quire.text.tokenizer.pair_truncation import PairTruncation
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Prompt

T = TypeVar("T")


def pooled_prompts(
    values: Sequence[str | Sequence[int]],
    tokenizer: Tokenizer,
    limits: InputLimits,
    add_special_tokens: bool = True,
    max_text_tokens: int | None = None,
) -> list[Prompt]:
    """A prompt for each value, a text or token ids. max_text_tokens: limit of a text without its special tokens."""
    check_truncation(limits)
    truncation = PairTruncation(first=max_text_tokens, whole=_whole(limits), side=limits.truncation_side)
    texts = {i: truncate_chars(value, tokenizer, limits) for i, value in enumerate(values) if isinstance(value, str)}
    ids_of = _encoded(texts, tokenizer, limits, add_special_tokens)

    def prompt(i: int) -> Prompt:
        if i not in texts:
            return _prompt(truncate(check_ids(values[i], limits.param), limits), limits)
        ids = ids_of[i]
        if add_special_tokens and len(ids) > truncation.min_limit:
            ((ids, _),) = tokenizer.encode_truncated([texts[i]], truncation)
        elif len(ids) > truncation.min_limit:
            ids = [ids[index] for index in truncation.kept_range(len(ids), int(truncation.min_limit))]
        return _prompt(drop_double_bos(ids, tokenizer) if add_special_tokens else ids, limits, text=values[i])

    return [_naming_item(i, len(values), limits.param, prompt) for i in range(len(values))]


def pair_prompts(
    pairs: Sequence[tuple[str, str]],
    tokenizer: Tokenizer,
    limits: InputLimits,
    *,
    max_first_tokens: int | None = None,
    max_second_tokens: int | None = None,
    token_types: bool = False,
) -> list[Prompt]:
    """A prompt for each pair of texts. token_types: whether the model reads token types, as BERT does."""
    check_truncation(limits)
    truncation = PairTruncation(
        first=max_first_tokens, second=max_second_tokens, whole=_whole(limits), side=limits.truncation_side
    )
    known = {text: truncate_chars(text, tokenizer, limits) for text in dict.fromkeys(itertools.chain(*pairs))}
    texts = [(known[first], known[second]) for first, second in pairs]
    found: list[tuple[list[int], list[int]]] = []
    for some in batches(range(len(texts)), lambda i: len(texts[i][0]) + len(texts[i][1])):
        raise_if_cancelled(limits)
        found += tokenizer.encode_truncated([texts[i] for i in some], truncation)

    def prompt(i: int) -> Prompt:
        ids, types = found[i]
        return _prompt(ids, limits, types=types if token_types else ())

    return [_naming_item(i, len(pairs), limits.param, prompt) for i in range(len(pairs))]


def _encoded(
    texts: Mapping[int, str], tokenizer: Tokenizer, limits: InputLimits, add_special_tokens: bool
) -> dict[int, list[int]]:
    """The ids of each text. Short texts are encoded in batches, long ones alone."""
    found: dict[int, list[int]] = {}
    for some in batches(texts, lambda i: len(texts[i])):
        raise_if_cancelled(limits)
        if len(some) == 1 and len(texts[some[0]]) > LONG_TEXT:
            found[some[0]] = _naming_item(
                some[0],
                len(texts),
                limits.param,
                lambda i: encode_long_text(texts[i], tokenizer, limits, add_special_tokens),
            )
        else:
            found.update(zip(some, tokenizer.encode_batch([texts[i] for i in some], add_special_tokens), strict=True))
    return found


def batches(numbers: Iterable[int], size: Callable[[int], int]) -> Iterator[list[int]]:
    """Group consecutive items into batches of up to `LONG_TEXT` characters; a longer item is a batch of its own."""
    run: list[int] = []
    total = 0
    for number in numbers:
        if run and total + size(number) > LONG_TEXT:
            yield run
            run, total = [], 0
        run.append(number)
        total += size(number)
    if run:
        yield run


def raise_if_cancelled(limits: InputLimits) -> None:
    """Raise `TokenizationCancelled` if the prompts are no longer needed."""
    if not limits.should_continue():
        raise TokenizationCancelled


def _whole(limits: InputLimits) -> int | None:
    return None if limits.truncate_prompt_tokens is None else limits.max_tokens


def _prompt(
    ids: Sequence[int], limits: InputLimits, text: str | Sequence[int] | None = None, types: Sequence[int] = ()
) -> Prompt:
    check_length(ids, limits)
    return Prompt(token_ids=tuple(ids), text=text if isinstance(text, str) else None, token_types=tuple(types))


def _naming_item(number: int, count: int, param: str, prompt: Callable[[int], T]) -> T:
    """`prompt(number)`, with the number of the item in its errors if there are several."""
    try:
        return prompt(number)
    except BadRequest as error:
        if count == 1:
            raise
        raise BadRequest(f"Item {number} of `{param}`: {error.message}", error.param) from error

"""From texts, token ids and pairs of texts to prompts that are pooled, many at a time.

Unlike a prompt that is continued, a text keeps the special tokens around it when it is cut, since poolers read them.
Whatever is wrong raises `BadRequest` naming the field, and which of several it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from quire.errors import BadRequest
from quire.text.inputs import (
    InputLimits,
    begun_once,
    check_ids,
    check_length,
    check_truncation,
    cut,
    encoded,
    worth_tokenizing,
)
from quire.text.long_texts import LONG_TEXT, Unwanted
from quire.text.room import Room
from quire.text.tokenizer import Tokenizer
from quire.types import Prompt

T = TypeVar("T")


def pooled_prompts(
    values: Sequence[str | Sequence[int]],
    tokenizer: Tokenizer,
    limits: InputLimits,
    add_special_tokens: bool = True,
    most_of_text: int | None = None,
) -> list[Prompt]:
    """A prompt for each value, a text or token ids. most_of_text: tokens a text may keep, special ones not counted."""
    check_truncation(limits)
    room = Room(first=most_of_text, whole=_whole(limits), side=limits.truncation_side)
    texts = {i: worth_tokenizing(value, tokenizer, limits) for i, value in enumerate(values) if isinstance(value, str)}
    ids_of = _encoded(texts, tokenizer, limits, add_special_tokens)

    def prompt(i: int) -> Prompt:
        if i not in texts:
            return _prompt(cut(check_ids(values[i], limits.param), limits), limits)
        ids = ids_of[i]
        if add_special_tokens and len(ids) > room.least:
            ((ids, _),) = tokenizer.encode_within([texts[i]], room)
        elif len(ids) > room.least:
            ids = [ids[place] for place in room.kept(len(ids), int(room.least))]
        return _prompt(begun_once(ids, tokenizer) if add_special_tokens else ids, limits, text=values[i])

    return [_of_many(i, len(values), limits.param, prompt) for i in range(len(values))]


def pair_prompts(
    pairs: Sequence[tuple[str, str]],
    tokenizer: Tokenizer,
    limits: InputLimits,
    *,
    most_of_first: int | None = None,
    most_of_second: int | None = None,
    token_types: bool = False,
) -> list[Prompt]:
    """A prompt for each pair of texts. token_types: whether the model tells them apart by the types of their tokens."""
    check_truncation(limits)
    room = Room(first=most_of_first, second=most_of_second, whole=_whole(limits), side=limits.truncation_side)
    known = {text: worth_tokenizing(text, tokenizer, limits) for text in dict.fromkeys(itertools.chain(*pairs))}
    texts = [(known[first], known[second]) for first, second in pairs]
    found: list[tuple[list[int], list[int]]] = []
    for some in batches(range(len(texts)), lambda i: len(texts[i][0]) + len(texts[i][1])):
        check_wanted(limits)
        found += tokenizer.encode_within([texts[i] for i in some], room)

    def prompt(i: int) -> Prompt:
        ids, types = found[i]
        return _prompt(ids, limits, types=types if token_types else ())

    return [_of_many(i, len(pairs), limits.param, prompt) for i in range(len(pairs))]


def _encoded(
    texts: Mapping[int, str], tokenizer: Tokenizer, limits: InputLimits, add_special_tokens: bool
) -> dict[int, list[int]]:
    """Ids by number: short texts many at a time, long ones alone."""
    found: dict[int, list[int]] = {}
    for some in batches(texts, lambda i: len(texts[i])):
        check_wanted(limits)
        if len(some) == 1 and len(texts[some[0]]) > LONG_TEXT:
            found[some[0]] = _of_many(
                some[0], len(texts), limits.param, lambda i: encoded(texts[i], tokenizer, limits, add_special_tokens)
            )
        else:
            found.update(zip(some, tokenizer.encode_batch([texts[i] for i in some], add_special_tokens), strict=True))
    return found


def batches(numbers: Iterable[int], size: Callable[[int], int]) -> Iterator[list[int]]:
    """Runs of numbers with about `LONG_TEXT` characters together; what has more is alone."""
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


def check_wanted(limits: InputLimits) -> None:
    """Raise `Unwanted` when nothing needs the prompts any more."""
    if not limits.wanted():
        raise Unwanted


def _whole(limits: InputLimits) -> int | None:
    return None if limits.truncate_prompt_tokens is None else limits.most_tokens


def _prompt(
    ids: Sequence[int], limits: InputLimits, text: str | Sequence[int] | None = None, types: Sequence[int] = ()
) -> Prompt:
    check_length(ids, limits)
    return Prompt(token_ids=tuple(ids), text=text if isinstance(text, str) else None, token_types=tuple(types))


def _of_many(number: int, count: int, param: str, prompt: Callable[[int], T]) -> T:
    try:
        return prompt(number)
    except BadRequest as error:
        if count == 1:
            raise
        raise BadRequest(f"Item {number} of `{param}`: {error.message}", error.param) from error

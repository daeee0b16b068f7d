"""Structured output of the simplest kind: the answer is one of a list of texts.

A matcher holds what is left of each text that still fits, as bytes; the tokens allowed next are those
whose bytes begin one of them, found by dictionary look-ups, never by a walk over the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quire import GrammarBackend, hookimpl
from quire.errors import BadRequest
from quire.records import Context

if TYPE_CHECKING:
    from torch import Tensor

    from quire.structured import Structured

MAX_CHOICES = 1024
MAX_CHOICE_BYTES = 4096


class Choices:
    """Compiles lists of texts for one vocabulary."""

    def __init__(self, context: Context) -> None:
        tokenizer: Any = context.tokenizer
        special = tokenizer.special_ids
        self._ids: dict[bytes, list[int]] = {}
        for token_id in sorted(tokenizer.vocab.values()):
            if token_id not in special:
                self._ids.setdefault(tokenizer.token_bytes(token_id), []).append(token_id)
        self._bytes = {token_id: text for text, ids in self._ids.items() for token_id in ids}
        self._longest = max(map(len, self._ids), default=0)

    def compile(self, asked: Structured) -> ChoiceGrammar:
        """The source is a JSON list of texts."""
        try:
            choices = json.loads(asked.source)
        except ValueError as error:
            raise BadRequest(f"`choice` is not JSON: {error}.", "structured_outputs") from error
        if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
            raise BadRequest("`choice` must be a non-empty list of non-empty strings.", "structured_outputs")
        texts = [choice.encode() for choice in choices]
        if len(texts) > MAX_CHOICES or max(map(len, texts)) > MAX_CHOICE_BYTES:
            raise BadRequest(
                f"`choice` takes at most {MAX_CHOICES} texts of at most {MAX_CHOICE_BYTES} bytes.", "structured_outputs"
            )
        return ChoiceGrammar(self, tuple(dict.fromkeys(texts)))

    def beginnings(self, rest: bytes) -> Iterator[int]:
        """Ids of the tokens whose bytes `rest` begins with."""
        for length in range(1, min(len(rest), self._longest) + 1):
            yield from self._ids.get(rest[:length], ())

    def bytes_of(self, token_id: int) -> bytes | None:
        """Bytes of a token, None for special ones."""
        return self._bytes.get(token_id)


class ChoiceGrammar:
    """A list of texts; shared by all seqs that choose from it."""

    def __init__(self, choices: Choices, texts: tuple[bytes, ...]) -> None:
        self._choices, self._texts = choices, texts

    def start(self) -> ChoiceMatcher:
        """A matcher before the first byte."""
        return ChoiceMatcher(self._choices, self._texts)


class ChoiceMatcher:
    """What is left of each text that still fits; a stack, so that tokens can be taken back."""

    def __init__(self, choices: Choices, texts: tuple[bytes, ...]) -> None:
        self._choices = choices
        self._left = [texts]

    @property
    def done(self) -> bool:
        """Whether a text is complete and none could go on."""
        return not any(self._left[-1])

    @property
    def complete(self) -> bool:
        """Whether the answer may end here."""
        return b"" in self._left[-1]

    def fill(self, mask: Tensor) -> None:
        """Allow the tokens that begin what is left of some text."""
        mask.zero_()
        allowed = {token_id for rest in self._left[-1] for token_id in self._choices.beginnings(rest)}
        words: Any = mask.numpy().view("uint32")
        for token_id in allowed:
            words[token_id // 32] |= 1 << token_id % 32

    def accept(self, token_id: int) -> bool:
        """Advance by one token."""
        token = self._choices.bytes_of(token_id)
        if not token:
            return False
        left = tuple(rest[len(token) :] for rest in self._left[-1] if rest.startswith(token))
        if left:
            self._left.append(left)
        return bool(left)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens."""
        del self._left[len(self._left) - count :]

    def forced(self) -> tuple[int, ...]:
        """None: one text can be written in many tokens, or few."""
        return ()


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    """Offer the kind `choice`."""
    yield GrammarBackend("choice", frozenset({"choice"}), Choices)

"""Structured output with a list of choices: the answer is one of the texts.

A matcher holds the remaining bytes of each text that still fits. The tokens allowed next are those whose bytes begin
one of them; they are found by dictionary lookups, not by a loop over the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from quire.plugin import BadRequest, Context, GrammarBackend, hookimpl

if TYPE_CHECKING:
    from torch import Tensor

    from quire.plugin import StructuredSpec

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

    def compile(self, asked: StructuredSpec) -> ChoiceGrammar:
        """Compiles a JSON list of texts."""
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
        """Ids of the tokens that `rest` (bytes) begins with."""
        for length in range(1, min(len(rest), self._longest) + 1):
            yield from self._ids.get(rest[:length], ())

    def bytes_of(self, token_id: int) -> bytes | None:
        """Bytes of a token; None for special tokens."""
        return self._bytes.get(token_id)


class ChoiceGrammar:
    """A list of texts, shared by all seqs with the same constraint."""

    def __init__(self, choices: Choices, texts: tuple[bytes, ...]) -> None:
        self._choices, self._texts = choices, texts

    def start(self) -> ChoiceMatcher:
        return ChoiceMatcher(self._choices, self._texts)


class ChoiceMatcher:
    """Matcher state of one seq: a stack of the remaining bytes of each text that still fits, so that tokens can be
    rolled back.
    """

    def __init__(self, choices: Choices, texts: tuple[bytes, ...]) -> None:
        self._choices = choices
        self._left = [texts]

    @property
    def is_terminated(self) -> bool:
        return not any(self._left[-1])

    @property
    def is_accepting(self) -> bool:
        return b"" in self._left[-1]

    def fill(self, mask: Tensor) -> None:
        """Allows the tokens that begin the rest of some text. mask: uint32 bits."""
        mask.zero_()
        allowed = {token_id for rest in self._left[-1] for token_id in self._choices.beginnings(rest)}
        words: Any = mask.numpy().view("uint32")
        for token_id in allowed:
            words[token_id // 32] |= 1 << token_id % 32

    def accept(self, token_id: int) -> bool:
        token = self._choices.bytes_of(token_id)
        if not token:
            return False
        left = tuple(rest[len(token) :] for rest in self._left[-1] if rest.startswith(token))
        if left:
            self._left.append(left)
        return bool(left)

    def rollback(self, count: int) -> None:
        del self._left[len(self._left) - count :]

    def jump_forward(self) -> tuple[int, ...]:
        """Always empty: one text can be tokenized in several ways."""
        return ()


@hookimpl
def quire_grammar_backends() -> Iterator[GrammarBackend]:
    """Back end for the kind `choice`."""
    yield GrammarBackend("choice", frozenset({"choice"}), Choices)

"""Encodes long texts block by block, so that memory stays small, other threads run, and the work can be cancelled.

Cutting a text changes the tokens at the cut. Neighboring blocks therefore overlap and are joined where both have the
same MIN_AGREEING tokens in a row; a block without such a point is made longer. Tokenizers depend only on near context
(words, or pairs of adjacent tokens), so both blocks agree from there on, and the joined ids equal those of the whole
text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tokenizers

LONG_TEXT = 1 << 16
"""Texts of up to this number of characters are encoded at once."""

BLOCK_CHARS = 1 << 15
"""Characters per block of a longer text."""

OVERLAP = 4096
"""Characters that neighboring blocks share."""

MIN_AGREEING = 16
"""Consecutive tokens that must be equal where two blocks are joined."""

MARGIN = 256
"""Characters before the end of a block whose tokens could change if the text went on."""

MAX_BLOCK_CHARS = 1 << 18
"""Limit for the growth of a block: creating the list of its ids holds the GIL."""

MAX_JOIN_ATTEMPTS = 512
"""Tokens at which a join is attempted."""

ShouldContinue = Callable[[], bool]


class TokenizationCancelled(Exception):
    """Encoding was stopped because its result is no longer needed."""


class Indivisible(ValueError):
    """A section of a text is too long to be encoded at once and cannot be divided."""


class TextBlock(NamedTuple):
    """The ids of a section of a text, and the offset of the character after it."""

    ids: list[int]
    end: int


@dataclass(frozen=True, slots=True)
class _Encoded:
    """An encoded block of a text. begin: offset of its first character; length: its number of characters."""

    encoding: tokenizers.Encoding
    ids: list[int]
    begin: int
    length: int

    @classmethod
    def from_text(cls, backend: tokenizers.Tokenizer, text: str, begin: int, length: int) -> _Encoded:
        block = text[begin : begin + length]
        (encoding,) = backend.encode_batch([block], add_special_tokens=False)  # unlike `encode`, releases the GIL
        return cls(encoding, encoding.ids, begin, len(block))

    def token_at(self, offset: int) -> int | None:
        """The first token that starts at this character of the text or up to MARGIN characters after it."""
        for char in range(offset - self.begin, min(offset - self.begin + MARGIN, self.length)):
            token = self.encoding.char_to_token(char)
            if token is not None and self.starts(token) == self.begin + char:
                return token
        return None

    def starts(self, token: int) -> int | None:
        """Offset in the text at which a token starts; None if it overlaps the token before it."""
        span = self._span(token)
        previous = self._span(token - 1) if token else None
        if span is None or (previous is not None and previous[1] > span[0]):
            return None
        return self.begin + span[0]

    def ends(self, token: int) -> int:
        span = self._span(token)
        return self.begin + (self.length if span is None else span[1])

    def _span(self, token: int) -> tuple[int, int] | None:
        span: tuple[int, int] | None = self.encoding.token_to_chars(token)
        return span


def encode_blocks(backend: tokenizers.Tokenizer, text: str, length: int = BLOCK_CHARS) -> Iterator[TextBlock]:
    """The ids of `text` without special tokens, in blocks of about `length` characters.

    Raises `Indivisible` if a block of `MAX_BLOCK_CHARS` characters or more cannot be joined to the next one.
    """
    block, num_emitted = _Encoded.from_text(backend, text, 0, length), 0  # tokens of `block` emitted before
    while block.begin + block.length < len(text):
        join = _find_join(backend, text, block, num_emitted, length)
        if join is None:
            if block.length >= MAX_BLOCK_CHARS:
                raise Indivisible(f"{block.length} characters in a row have no place where they can be divided")
            block = _Encoded.from_text(backend, text, block.begin, 4 * block.length)
            continue
        end_token, next_block, next_token = join
        offset = next_block.starts(next_token)
        yield TextBlock(block.ids[num_emitted:end_token], len(text) if offset is None else offset)
        block, num_emitted = next_block, next_token
    yield TextBlock(block.ids[num_emitted:], len(text))


def _find_join(
    backend: tokenizers.Tokenizer, text: str, block: _Encoded, num_emitted: int, length: int
) -> tuple[int, _Encoded, int] | None:
    """Where the next block continues `block`: (token of `block`, next block, its token); None if they do not agree."""
    end = block.begin + block.length
    first = block.token_at(end - OVERLAP)
    begin = None if first is None else block.starts(first)
    if first is None or begin is None or first <= num_emitted:
        return None
    next_block = _Encoded.from_text(backend, text, begin, length)
    for token in range(first + MIN_AGREEING, min(first + MAX_JOIN_ATTEMPTS, len(block.ids) - MIN_AGREEING)):
        if block.ends(token + MIN_AGREEING - 1) > end - MARGIN:
            return None
        offset = block.starts(token)
        other = None if offset is None else next_block.encoding.char_to_token(offset - begin)
        if other is None or next_block.starts(other) != offset:
            continue
        if block.ids[token : token + MIN_AGREEING] == next_block.ids[other : other + MIN_AGREEING]:
            return token, next_block, other
    return None


def surrounding_tokens(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """The special tokens before and after every text; None if they depend on the text."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for begin in range(len(whole) - len(plain) + 1):
        if whole[begin : begin + len(plain)] == plain:
            return whole[:begin], whole[begin + len(plain) :]
    return None

"""Long texts to ids, a piece at a time: memory stays small, others get their turn, and it can be given up.

A text can't just be cut: the tokens at a cut would be others. So neighbouring pieces overlap, and they are joined
where both have the same tokens for a while; if there is no such place, the piece is made longer. Tokenizers look at
what is near only (words, or pairs of tokens next to each other), so from there on both agree, and the joined ids are
those of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tokenizers

LONG_TEXT = 1 << 16
"""Characters up to which a text is encoded as a whole."""

PIECE = 1 << 15
"""Characters of a piece of a longer one."""

OVERLAP = 4096
AGREEING = 16
"""Tokens in a row that must be equal where two pieces are joined."""

MARGIN = 256
"""Characters before the end of a piece whose tokens might be others if it went on."""

TRIES = 512
"""Tokens at which joining is tried."""

Wanted = Callable[[], bool]


class Unwanted(Exception):
    """Given up, since nothing needs the result any more."""


class Piece(NamedTuple):
    """Ids of a stretch of a text, and the character after it."""

    ids: list[int]
    end: int


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A piece with its tokens. begin: its first character in the text."""

    encoding: tokenizers.Encoding
    ids: list[int]
    begin: int
    length: int

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, text: str, begin: int, length: int) -> _Encoded:
        part = text[begin : begin + length]
        (encoding,) = backend.encode_batch([part], add_special_tokens=False)  # alone of its kind lets others run
        return cls(encoding, encoding.ids, begin, len(part))

    def token_at(self, place: int) -> int | None:
        """The first token from this character of the text on; None where a token covers what is around it."""
        for char in range(place - self.begin, min(place - self.begin + MARGIN, self.length)):
            token = self.encoding.char_to_token(char)
            if token is not None and self.starts(token) == self.begin + char:
                return token
        return None

    def starts(self, token: int) -> int | None:
        """The character of the text that a token begins with, if the one before it ends there."""
        span = self._span(token)
        before = self._span(token - 1) if token else None
        if span is None or (before is not None and before[1] > span[0]):
            return None
        return self.begin + span[0]

    def ends(self, token: int) -> int:
        span = self._span(token)
        return self.begin + (self.length if span is None else span[1])

    def _span(self, token: int) -> tuple[int, int] | None:
        span: tuple[int, int] | None = self.encoding.token_to_chars(token)
        return span


def pieces(backend: tokenizers.Tokenizer, text: str, length: int = PIECE) -> Iterator[Piece]:
    """The ids of `text` without special tokens, in stretches of about `length` characters."""
    now, done = _Encoded.of(backend, text, 0, length), 0  # done: tokens of `now` that were given before
    while now.begin + now.length < len(text):
        join = _joined(backend, text, now, done, length)
        if join is None:  # no place to join: take more at once
            now = _Encoded.of(backend, text, now.begin, 4 * now.length)
            continue
        here, following, there = join
        place = following.starts(there)
        yield Piece(now.ids[done:here], len(text) if place is None else place)
        now, done = following, there
    yield Piece(now.ids[done:], len(text))


def _joined(
    backend: tokenizers.Tokenizer, text: str, now: _Encoded, done: int, length: int
) -> tuple[int, _Encoded, int] | None:
    """(token of `now`, the next piece, token of that): where the next may go on; None if nowhere."""
    end = now.begin + now.length
    first = now.token_at(end - OVERLAP)
    begin = None if first is None else now.starts(first)
    if first is None or begin is None or first <= done:
        return None
    following = _Encoded.of(backend, text, begin, length)
    for here in range(first + AGREEING, min(first + TRIES, len(now.ids) - AGREEING)):
        if now.ends(here + AGREEING - 1) > end - MARGIN:
            return None
        place = now.starts(here)
        there = None if place is None else following.encoding.char_to_token(place - begin)
        if there is None or following.starts(there) != place:
            continue
        if now.ids[here : here + AGREEING] == following.ids[there : there + AGREEING]:
            return here, following, there
    return None


def around(backend: tokenizers.Tokenizer) -> tuple[list[int], list[int]] | None:
    """The special tokens before and after every text; None where they depend on it."""
    plain = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for begin in range(len(whole) - len(plain) + 1):
        if whole[begin : begin + len(plain)] == plain:
            return whole[:begin], whole[begin + len(plain) :]
    return None

"""Decodes ids to text while they arrive: what was given out is never taken back or cut in half.

It knows tokenizers only through `Tokenizer`; stop strings are `quire.text.machine`'s affair.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from quire.text.tokenizer import Tokenizer

MAX_HELD = 8
"""A character has at most four bytes, one per token: a longer tail of U+FFFD is really that."""

BROKEN = "\ufffd"


class DecodesStream(Protocol):
    """The state of one seq's text."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that `ids` complete; O(1) per id, however long the text is."""
        ...

    def flush(self) -> str:
        """What was held back; call once, at the end."""
        ...


def IncrementalDecoder(
    tokenizer: Tokenizer, skip_special_tokens: bool = True, context: Sequence[int] = ()
) -> DecodesStream:
    """A decoder for one seq.

    context: the ids before the first one (the prompt's), which decide whether the text begins with
    a space. All pieces and the flush together are the text of the ids, as `Tokenizer.decode` gives
    it after that context; only broken UTF-8 may show another number of U+FFFD.
    """
    if tokenizer.byte_level:
        return _ByteDecoder(tokenizer, skip_special_tokens)
    return _WindowDecoder(tokenizer, skip_special_tokens, context)


class _ByteDecoder:
    """For byte-level vocabularies: text is the UTF-8 decoding of the tokens' bytes, context or not."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._whole = tokenizer.whole_texts(skip_special_tokens)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._between = True  # nothing is held back

    def push(self, ids: Sequence[int]) -> str:
        if self._between and len(ids) == 1 and (text := self._whole[ids[0]]) is not None:
            return text  # nearly every token of nearly every text
        text = self._utf8.decode(b"".join([self._bytes(i) for i in ids if i not in self._skipped]))
        self._between = not self._utf8.getstate()[0]
        return text

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class _WindowDecoder:
    """For all others: decode what is new behind a little of what is old, and give the difference.

    `_old` are the ids of the last piece (their text is out), `_new` those after it (text held).
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, context: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._old = self._anchor(context)
        self._old_text = self._text(self._old)
        self._new: list[int] = []

    def _anchor(self, context: Sequence[int]) -> list[int]:
        """The shortest end of the context that has whole characters as text."""
        shown = [i for i in context[-2 * MAX_HELD :] if self._shows(i)]
        for count in range(1, min(len(shown), MAX_HELD) + 1):
            text = self._text(shown[-count:])
            if text.strip() and BROKEN not in text:
                return shown[-count:]
        return []

    def _shows(self, token_id: int) -> bool:
        return token_id not in self._skipped and self._tokenizer.token_string(token_id) is not None

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""

    def push(self, ids: Sequence[int]) -> str:
        pieces = []
        for token_id in ids:
            if not self._shows(token_id):
                continue
            self._new.append(token_id)
            pieces.append(self._take(final=len(self._new) >= MAX_HELD))
        return "".join(pieces)

    def flush(self) -> str:
        return self._take(final=True) if self._new else ""

    def _take(self, final: bool) -> str:
        """The text of `_new`, or nothing while it may still change."""
        text = self._text([*self._old, *self._new])
        if not final and text.endswith(BROKEN):
            return ""
        piece = text.removeprefix(self._old_text)
        if len(piece) == len(text) and self._old_text:
            # New broken bytes spoilt the old ones' text: they are shown by themselves.
            piece = self._text(self._new)
        elif not piece and self._old_text:
            self._new = []  # tokens without any text: what stands before them is still the better context
            return ""
        self._old, self._new = [*self._old, *self._new] if not piece else self._new, []
        self._old_text = self._text(self._old)
        return piece

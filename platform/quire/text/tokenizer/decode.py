"""Decodes token ids to text as they arrive. Text that was returned never changes, and no character is split.

`tokenizers.decoders.DecodeStream` is not used: it works only with Rust tokenizers and cannot flush an incomplete tail.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from quire.text.tokenizer.tokenizer import Tokenizer

MAX_HELD = 8
"""Tokens held back at most. A character has at most four bytes, one per token, so a longer tail of U+FFFD is final."""

REPLACEMENT = "\ufffd"


class StreamDecoder(Protocol):
    """Decoding state of one sequence."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that `ids` complete. O(1) per id, whatever the length of the text."""
        ...

    def flush(self) -> str:
        """The text held back so far. Call it once, at the end."""
        ...


def make_decoder(tokenizer: Tokenizer, skip_special_tokens: bool = True, context: Sequence[int] = ()) -> StreamDecoder:
    """A decoder for one sequence.

    context: the ids of the prompt, which decide whether the text begins with a space. The concatenation of all
    returned texts equals what `Tokenizer.decode` returns for the ids after that context, except that invalid UTF-8
    may show as another number of U+FFFD.
    """
    if tokenizer.is_byte_level:
        return _ByteDecoder(tokenizer, skip_special_tokens)
    return _WindowDecoder(tokenizer, skip_special_tokens, context)


class _ByteDecoder:
    """For byte-level vocabularies: the text is the UTF-8 decoding of the tokens' bytes, whatever the context."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._token_texts = tokenizer.token_texts(skip_special_tokens)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._holds_nothing = True

    def push(self, ids: Sequence[int]) -> str:
        if self._holds_nothing and len(ids) == 1 and (text := self._token_texts[ids[0]]) is not None:
            return text  # the fast path of nearly every token
        text = self._utf8.decode(b"".join([self._bytes(i) for i in ids if i not in self._skipped]))
        self._holds_nothing = not self._utf8.getstate()[0]
        return text

    def flush(self) -> str:
        return self._utf8.decode(b"", True)


class _WindowDecoder:
    """For all other vocabularies: decode the new ids after a few old ones, and return the difference.

    `_old`: ids whose text was returned last. `_new`: ids after them whose text is held back.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, context: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._old = self._anchor(context)
        self._old_text = self._text(self._old)
        self._new: list[int] = []

    def _anchor(self, context: Sequence[int]) -> list[int]:
        """The shortest suffix of the context whose text consists of complete characters."""
        visible = [i for i in context[-2 * MAX_HELD :] if self._is_visible(i)]
        for count in range(1, min(len(visible), MAX_HELD) + 1):
            text = self._text(visible[-count:])
            if text.strip() and REPLACEMENT not in text:
                return visible[-count:]
        return []

    def _is_visible(self, token_id: int) -> bool:
        return token_id not in self._skipped and self._tokenizer.token_string(token_id) is not None

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""

    def push(self, ids: Sequence[int]) -> str:
        texts = []
        for token_id in ids:
            if not self._is_visible(token_id):
                continue
            self._new.append(token_id)
            texts.append(self._decode_new(final=len(self._new) >= MAX_HELD))
        return "".join(texts)

    def flush(self) -> str:
        return self._decode_new(final=True) if self._new else ""

    def _decode_new(self, final: bool) -> str:
        """The text of `_new`; "" while it may still change."""
        text = self._text([*self._old, *self._new])
        if not final and text.endswith(REPLACEMENT):
            return ""
        added = text.removeprefix(self._old_text)
        if len(added) == len(text) and self._old_text:
            # invalid bytes changed the text of the old ids: decode the new ids alone
            added = self._text(self._new)
        elif not added and self._old_text:
            self._new = []  # the new ids have no text; the old ones remain the context
            return ""
        self._old, self._new = [*self._old, *self._new] if not added else self._new, []
        self._old_text = self._text(self._old)
        return added

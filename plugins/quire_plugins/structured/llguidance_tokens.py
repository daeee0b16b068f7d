"""A vocabulary in llguidance's form, and the tokenization of forced text."""

from __future__ import annotations

from typing import Any

MAX_TEXT_CHARS = 1024
"""Longer forced texts are cut to this many characters, because tokenization is repeated after each token."""
_SENTINEL = "\x02"
"""Written before a text that is tokenized, because some tokenizers treat the beginning of a text specially."""


class VocabularyTokens:
    """Texts by token id; an id without text is a special token."""

    bos_token_id = None

    def __init__(self, tokenizer: Any, vocab_size: int, end: int) -> None:
        self.eos_token_id = end
        known = [b"" if i in tokenizer.special_ids else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        known += [b""] * (vocab_size - len(known))
        self.special_token_ids = [i for i, text in enumerate(known) if not text or i == end]
        self._ids = {text: i for i, text in enumerate(known) if text and i != end}
        for i in self.special_token_ids:
            known[i] = f"<|{i}|>".encode()  # a name that no text contains
        self.tokens = known
        self._tokenizer = tokenizer
        self._before = tokenizer.encode(_SENTINEL, add_special_tokens=False)
        self._longest = max(map(len, self._ids), default=1)

    def __call__(self, text: str) -> list[int]:
        """Returns the tokens of forced text, as the tokenizer writes them in the middle of a text, if possible."""
        if not isinstance(text, str):
            raise TypeError("it is texts that are tokenized, not bytes")
        if len(text) > MAX_TEXT_CHARS:
            ids = self(text[:MAX_TEXT_CHARS])
            return ids[: -(-len(ids) // 2)]  # near the cut the tokens would be different
        ids = self._tokenizer.encode(_SENTINEL + text, add_special_tokens=False)
        count, data = len(self._before), text.encode()
        if ids[:count] == self._before and b"".join(self.tokens[i] for i in ids[count:]) == data:
            return ids[count:]
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        ids: list[int] = []
        while data:
            length = next(n for n in range(min(len(data), self._longest), -1, -1) if data[:n] in self._ids or n == 0)
            if length == 0:
                return ids  # the library handles the rest
            ids.append(self._ids[data[:length]])
            data = data[length:]
        return ids

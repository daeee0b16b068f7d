"""The tokenizer of a model, loaded from its folder: text to token ids and back.

tokenizer.json is read with the `tokenizers` library alone; other formats import transformers.
`quire.text.tokenizer.decode` decodes while tokens arrive.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from quire.errors import BadRequest
from quire.text.tokenizer.files import DEFAULT_TEMPLATE, TokenizerFiles, read_files
from quire.text.tokenizer.limits import check_ids
from quire.text.tokenizer.long_texts import LONG_TEXT, Indivisible, ShouldContinue, TextBlock, TokenizationCancelled
from quire.text.tokenizer.pair_truncation import PairTruncation
from quire.text.tokenizer.token_bytes import TokenTexts, decoder_steps, make_byte_converter

Texts: TypeAlias = str | tuple[str, str]
"""The text of a prompt, or a pair of texts."""


class TokenizerBackend(Protocol):
    """Interface of a tokenizer library. Ids outside the vocabulary decode to no text."""

    @property
    def surrounding_tokens(self) -> tuple[list[int], list[int]] | None:
        """The special tokens before and after every text; None if they depend on the text."""
        ...

    def encode_blocks(self, text: str) -> Iterator[TextBlock]:
        """Ids of a long text without special tokens, in blocks."""
        ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of one text."""
        ...

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Ids of each text."""
        ...

    def encode_truncated(self, texts: Sequence[Texts], truncation: PairTruncation) -> list[tuple[list[int], list[int]]]:
        """Ids and token types of each text or pair, truncated, with all its special tokens."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        """The text of the ids."""
        ...

    def vocab(self) -> Mapping[str, int]:
        """Every token, including added ones, with its id."""
        ...

    def special_ids(self) -> Iterable[int]:
        """Ids that `skip_special_tokens` omits."""
        ...

    def added_ids(self) -> Iterable[int]:
        """Ids whose vocabulary strings are plain text even in a vocabulary with a byte alphabet."""
        ...

    def decoder_config(self) -> Mapping[str, Any] | None:
        """The JSON of the decoder in the format of `tokenizers`; None if the library does not describe it."""
        ...


@runtime_checkable
class ChatTokenizerBackend(Protocol):
    """A tokenizer library that encodes chats itself, without a chat template."""

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Texts of all tokens that user text never becomes."""
        ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        continue_final_message: bool,
    ) -> str:
        """The prompt text of a chat. `TokenizerBackend.encode` returns its exact ids.

        continue_final_message: leave the last message open.
        """
        ...


class Tokenizer:
    """Encodes and decodes text; thread-safe.

    vocab_size: 1 + the largest id (the embedding table of the model may be larger). bos_id, eos_id, pad_id, unk_id:
    None if the folder names no such token. special_tokens: their texts by name, as chat templates use them;
    extra_special_tokens: special tokens without a name. class_name: in transformers, if the folder names it.
    chat_templates: templates by name; `chat_template` is the default one.
    """

    def __init__(self, backend: TokenizerBackend, files: TokenizerFiles | None = None) -> None:
        files = files or TokenizerFiles()
        self._backend = backend
        self.vocab: Mapping[str, int] = backend.vocab()
        self.vocab_size = 1 + max(self.vocab.values(), default=-1)
        self.special_ids = frozenset(backend.special_ids())
        self.special_tokens: Mapping[str, str] = dict(files.special)
        self.extra_special_tokens = files.extra_special
        self.class_name = files.tokenizer_class
        self.bos_id = self._id_of("bos_token")
        self.eos_id = self._id_of("eos_token")
        self.pad_id = self._id_of("pad_token")
        self.unk_id = self._id_of("unk_token")
        self.chat_templates: Mapping[str, str] = dict(files.templates)
        self._bytes: dict[int, bytes] = {}  # a cache; two threads may set the same entry
        self._token_texts = TokenTexts(self.token_bytes, frozenset())
        self._token_texts_without_special = TokenTexts(self.token_bytes, self.special_ids)

    @classmethod
    def load(cls, folder: str | Path, mode: str = "auto", trust_remote_code: bool = False) -> Tokenizer:
        """The tokenizer of a model folder. Raises `CheckpointError` if there is none or it cannot be read.

        mode: `ModelConfig.tokenizer_mode`. trust_remote_code: run tokenizer code that the folder contains.
        """
        from quire.text.tokenizer.backends import load_backend

        folder = Path(folder)
        files = read_files(folder)
        backend, special = load_backend(folder, files, mode, trust_remote_code)
        tokenizer = cls(backend, files if special is None else replace(files, special=special))
        check_ids(tokenizer.vocab, folder)
        return tokenizer

    @property
    def chat_backend(self) -> ChatTokenizerBackend | None:
        """The back end, if it encodes chats without a template; else None."""
        return self._backend if isinstance(self._backend, ChatTokenizerBackend) else None

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.vocab.get(text)

    @property
    def chat_template(self) -> str | None:
        """The default chat template of the model."""
        return self.chat_templates.get(DEFAULT_TEMPLATE)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The end-of-text id, if the folder names one (generation_config.json may name more)."""
        return () if self.eos_id is None else (self.eos_id,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`. Raises `BadRequest` if it is not valid text."""
        try:
            return self._backend.encode(text, add_special_tokens)
        except (TypeError, UnicodeError) as error:  # a lone surrogate is not text
            raise BadRequest(f"The text cannot be tokenized: {error}.", "prompt") from error

    def encode_long(
        self,
        text: str,
        add_special_tokens: bool = True,
        max_tokens: int | None = None,
        should_continue: ShouldContinue = lambda: True,
    ) -> list[int]:
        """The ids that `encode` returns, for a text of any length, computed in blocks so that other threads can run.

        max_tokens: stop early, with more ids than that. Raises TokenizationCancelled if `should_continue()` is false.
        """
        ids: list[int] = []
        for block in self.encode_blocks(text, add_special_tokens, should_continue):
            ids += block
            if max_tokens is not None and len(ids) > max_tokens:
                break
        return ids

    def encode_blocks(
        self, text: str, add_special_tokens: bool = True, should_continue: ShouldContinue = lambda: True
    ) -> Iterator[list[int]]:
        """The ids that `encode_long` returns, as one list per block."""
        special = self._backend.surrounding_tokens if add_special_tokens else ([], [])
        if len(text) <= LONG_TEXT or special is None:
            yield self.encode_batch([text], add_special_tokens)[0]
            return
        yield list(special[0])
        for block in self._text_blocks(text, should_continue):
            yield block.ids
        yield list(special[1])

    def shorten(self, text: str, max_tokens: int, side: str, should_continue: ShouldContinue = lambda: True) -> str:
        """A prefix of `text` that holds its first `max_tokens` tokens, or a suffix with its last ones.

        side: the side that is cut, "left" or "right". The result has some more tokens than `max_tokens`, because the
        tokens next to the cut may differ from those of the whole text.
        """
        enough = max_tokens + LONG_TEXT // 16
        if side == "left":
            length = LONG_TEXT
            while length < len(text):
                if len(self.encode_long(text[-length:], False, enough, should_continue)) > enough:
                    return text[-length:]
                length *= 2
            return text
        count = 0
        for block in self._text_blocks(text, should_continue) if len(text) > LONG_TEXT else ():
            count += len(block.ids)
            if count > enough:
                return text[: block.end]
        return text

    def _text_blocks(self, text: str, should_continue: ShouldContinue) -> Iterator[TextBlock]:
        try:
            for block in self._backend.encode_blocks(text):
                yield block
                if not should_continue():
                    raise TokenizationCancelled
        except (TypeError, UnicodeError, Indivisible) as error:
            raise BadRequest(f"The text cannot be tokenized: {error}.", "prompt") from error

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Ids of each text; faster than one call per text."""
        try:
            return self._backend.encode_batch(list(texts), add_special_tokens)
        except (TypeError, UnicodeError) as error:
            raise BadRequest(f"A text cannot be tokenized: {error}.", "prompt") from error

    def encode_truncated(self, texts: Sequence[Texts], truncation: PairTruncation) -> list[tuple[list[int], list[int]]]:
        """Ids and token types (0 or 1) of each text or pair. Truncation keeps all special tokens."""
        try:
            return self._backend.encode_truncated(texts, truncation)
        except (TypeError, UnicodeError) as error:
            raise BadRequest(f"A text cannot be tokenized: {error}.", "prompt") from error

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """Text of `ids`. Incomplete characters become U+FFFD; ids outside the vocabulary are ignored.

        spaces_between_special_tokens has an effect only on tokenizers without a tokenizer.json.
        """
        return self._backend.decode(ids, skip_special_tokens, spaces_between_special_tokens)

    @cached_property
    def token_strings(self) -> tuple[str | None, ...]:
        """Vocabulary strings by id, with byte-level alphabets and space symbols left undecoded."""
        strings: list[str | None] = [None] * self.vocab_size
        for token, index in self.vocab.items():
            strings[index] = token
        return tuple(strings)

    def token_string(self, token_id: int) -> str | None:
        """Vocabulary string of an id; None for an id outside the vocabulary."""
        strings = self.token_strings
        return strings[token_id] if 0 <= token_id < len(strings) else None

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self._backend.added_ids())

    @cached_property
    def _to_bytes(self) -> Callable[[str], bytes]:
        return make_byte_converter(self._backend.decoder_config())

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds in the middle of a text, possibly part of a character."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        string = self.token_string(token_id)
        if string is None:
            return b""
        if token_id in self._added_ids and not self.is_byte_level:
            return string.encode("utf-8", "replace")
        return self._to_bytes(string)

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, with U+FFFD for incomplete characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_texts(self, skip_special_tokens: bool) -> Mapping[int, str | None]:
        """The text that each token adds, by id; None for a token that holds part of a character."""
        return self._token_texts_without_special if skip_special_tokens else self._token_texts

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether a text is the UTF-8 decoding of the concatenated bytes of its tokens."""
        return [step["type"] for step in decoder_steps(self._backend.decoder_config())] == ["ByteLevel"]


def parse_decoder(state: bytes | str) -> Mapping[str, Any] | None:
    """The JSON of a decoder as an object; None if it is not an object."""
    value = json.loads(state)
    return value if isinstance(value, dict) else None

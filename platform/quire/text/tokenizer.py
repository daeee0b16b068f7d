"""A model's tokenizer, loaded from its folder: text to ids and back.

tokenizer.json is read by the `tokenizers` library alone; only other formats import transformers.
It knows no chat messages and no requests; decoding while tokens arrive is `quire.text.decode`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from quire.errors import BadRequest
from quire.text.long_texts import LONG_TEXT, Piece, Unwanted, Wanted
from quire.text.pieces import bytes_of, decoder_steps
from quire.text.room import Room
from quire.text.tokenizer_files import DEFAULT_TEMPLATE, TokenizerFiles, read_files

Texts: TypeAlias = str | tuple[str, str]
"""What one prompt is made of: a text, or a pair."""


class Encodes(Protocol):
    """What a tokenizer library must offer; ids outside the vocabulary decode to nothing."""

    @property
    def around(self) -> tuple[list[int], list[int]] | None:
        """Special tokens before and after every text; None where they depend on it."""
        ...

    def pieces(self, text: str) -> Iterator[Piece]:
        """Ids of a long text without special tokens, a piece at a time."""
        ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text."""
        ...

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Ids of each text."""
        ...

    def encode_within(self, texts: Sequence[Texts], room: Room) -> list[tuple[list[int], list[int]]]:
        """Ids and token types of each text or pair with its special tokens, the texts cut so that it fits."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        """Text of ids."""
        ...

    def vocab(self) -> Mapping[str, int]:
        """Every token, added ones included."""
        ...

    def special(self) -> Iterable[int]:
        """Ids that `skip_special_tokens` leaves out."""
        ...

    def added(self) -> Iterable[int]:
        """Ids whose vocabulary string is plain text, whatever the alphabet of the others."""
        ...

    def decoder(self) -> Mapping[str, Any] | None:
        """Description of the decoder, where the library has one."""
        ...


@runtime_checkable
class EncodesChats(Protocol):
    """A tokenizer library that makes prompts of chats, without a template."""

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Texts of all tokens that no text becomes."""
        ...

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, go_on: bool
    ) -> str:
        """A chat as a text, which `Encodes.encode` knows the ids of. go_on: leave the last message open."""
        ...


class WholeTexts(dict[int, str | None]):
    """By id, the text that a token adds in the middle of a text; None for a part of a character. Filled when read."""

    def __init__(self, bytes_of: Callable[[int], bytes], left_out: frozenset[int]) -> None:
        """Tokens `left_out` add nothing."""
        super().__init__()
        self._bytes_of, self._left_out = bytes_of, left_out

    def __missing__(self, token_id: int) -> str | None:
        data = b"" if token_id in self._left_out else self._bytes_of(token_id)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


class Tokenizer:
    """Encodes and decodes; safe to use from several threads.

    vocab_size: 1 + the largest id (the model's own table may be larger). bos_id, eos_id, pad_id,
    unk_id: None where the folder names no such token. special_tokens: their texts by name, which
    chat templates may use; extra_special_tokens: further ones without a name. class_name: in transformers, if the
    folder says. chat_templates: by name; `chat_template` is the usual one.
    """

    def __init__(self, library: Encodes, files: TokenizerFiles | None = None) -> None:
        files = files or TokenizerFiles()
        self._library = library
        self.vocab: Mapping[str, int] = library.vocab()
        self.vocab_size = 1 + max(self.vocab.values(), default=-1)
        self.special_ids = frozenset(library.special())
        self.special_tokens: Mapping[str, str] = dict(files.special)
        self.extra_special_tokens = files.extra_special
        self.class_name = files.tokenizer_class
        self.bos_id = self._id_of("bos_token")
        self.eos_id = self._id_of("eos_token")
        self.pad_id = self._id_of("pad_token")
        self.unk_id = self._id_of("unk_token")
        self.chat_templates: Mapping[str, str] = dict(files.templates)
        self._bytes: dict[int, bytes] = {}  # filled as tokens are seen; setting an entry twice is harmless
        self._whole_texts = WholeTexts(self.token_bytes, frozenset())
        self._whole_texts_without_special = WholeTexts(self.token_bytes, self.special_ids)

    @classmethod
    def load(cls, folder: str | Path, mode: str = "auto", trust_remote_code: bool = False) -> Tokenizer:
        """The tokenizer in a model folder; `CheckpointError` when there is none or it cannot be read.

        mode, trust_remote_code: as `ModelConfig.tokenizer_mode` and the setting of that name.
        """
        from quire.text.tokenizer_libraries import load_library

        folder = Path(folder)
        files = read_files(folder)
        library, special = load_library(folder, files, mode, trust_remote_code)
        if special is not None:
            files = replace(files, special=special)
        return cls(library, files)

    @property
    def encodes_chats(self) -> EncodesChats | None:
        """Its library, if that makes prompts of chats."""
        return self._library if isinstance(self._library, EncodesChats) else None

    def _id_of(self, name: str) -> int | None:
        text = self.special_tokens.get(name)
        return None if text is None else self.vocab.get(text)

    @property
    def chat_template(self) -> str | None:
        """The model's usual chat template."""
        return self.chat_templates.get(DEFAULT_TEMPLATE)

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The end-of-text id, if the folder names one (generation_config.json may name more)."""
        return () if self.eos_id is None else (self.eos_id,)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, with the begin-of-text token (where the model has one) unless told otherwise."""
        try:
            return self._library.encode(text, add_special_tokens)
        except (TypeError, UnicodeError) as error:  # a lone surrogate is not text
            raise BadRequest(f"The text cannot be tokenized: {error}.", "prompt") from error

    def encode_long(
        self, text: str, add_special_tokens: bool = True, most: int | None = None, wanted: Wanted = lambda: True
    ) -> list[int]:
        """The same ids for a text of any length, a piece at a time, which lets other threads run meanwhile.

        most: stop when there are more, with those so far. Raises Unwanted when `wanted` says so.
        """
        around = self._library.around if add_special_tokens else ([], [])
        if len(text) <= LONG_TEXT or around is None:
            return self.encode_batch([text], add_special_tokens)[0]
        ids = list(around[0])
        for piece in self._pieces(text, wanted):
            ids += piece.ids
            if most is not None and len(ids) > most:
                return ids
        return ids + around[1]

    def shortened(self, text: str, most: int, side: str, wanted: Wanted = lambda: True) -> str:
        """`text` without what can't be among its first `most` tokens, or the last where `side`, which is cut, is left.

        Some more than these tokens stay, so that a cut text begins, or ends, as the whole does.
        """
        enough = most + LONG_TEXT // 16
        if side == "left":
            length = LONG_TEXT
            while length < len(text):
                if len(self.encode_long(text[-length:], False, enough, wanted)) > enough:
                    return text[-length:]
                length *= 2
            return text
        count = 0
        for piece in self._pieces(text, wanted) if len(text) > LONG_TEXT else ():
            count += len(piece.ids)
            if count > enough:
                return text[: piece.end]
        return text

    def _pieces(self, text: str, wanted: Wanted) -> Iterator[Piece]:
        try:
            for piece in self._library.pieces(text):
                yield piece
                if not wanted():
                    raise Unwanted
        except (TypeError, UnicodeError) as error:
            raise BadRequest(f"The text cannot be tokenized: {error}.", "prompt") from error

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Ids of each text; faster than one by one."""
        try:
            return self._library.encode_batch(list(texts), add_special_tokens)
        except (TypeError, UnicodeError) as error:
            raise BadRequest(f"A text cannot be tokenized: {error}.", "prompt") from error

    def encode_within(self, texts: Sequence[Texts], room: Room) -> list[tuple[list[int], list[int]]]:
        """Of each text or pair of texts, ids and their types, 0 or 1; special tokens stay when texts are cut."""
        try:
            return self._library.encode_within(texts, room)
        except (TypeError, UnicodeError) as error:
            raise BadRequest(f"A text cannot be tokenized: {error}.", "prompt") from error

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Ids of two texts in one prompt, special tokens around them, and the type of each, 0 or 1."""
        (encoded,) = self.encode_within([(first, second)], Room())
        return encoded

    def decode(
        self, ids: Sequence[int], skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """Text of `ids`. Incomplete characters give U+FFFD; ids that no token has give nothing.

        spaces_between_special_tokens matters only to tokenizers that have no tokenizer.json.
        """
        return self._library.decode(ids, skip_special_tokens, spaces_between_special_tokens)

    @cached_property
    def token_strings(self) -> tuple[str | None, ...]:
        """The vocabulary's string by id (byte-level alphabets and space marks as they are)."""
        strings: list[str | None] = [None] * self.vocab_size
        for token, index in self.vocab.items():
            strings[index] = token
        return tuple(strings)

    def token_string(self, token_id: int) -> str | None:
        """The vocabulary's string of an id, None for an id that no token has."""
        strings = self.token_strings
        return strings[token_id] if 0 <= token_id < len(strings) else None

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self._library.added())

    @cached_property
    def _bytes_of(self) -> Callable[[str], bytes]:
        return bytes_of(self._library.decoder())

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds in the middle of a text; half of a character where it is one."""
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        string = self.token_string(token_id)
        if string is None:
            return b""
        if token_id in self._added_ids and not self.byte_level:
            return string.encode("utf-8", "replace")
        return self._bytes_of(string)

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, U+FFFD where they are not whole characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def whole_texts(self, skip_special_tokens: bool) -> Mapping[int, str | None]:
        """What tokens add to a text, by id; None for those that hold a part of a character."""
        return self._whole_texts_without_special if skip_special_tokens else self._whole_texts

    @cached_property
    def byte_level(self) -> bool:
        """Whether text is exactly the UTF-8 decoding of all tokens' bytes in a row."""
        return [step["type"] for step in decoder_steps(self._library.decoder())] == ["ByteLevel"]


def parse_decoder(state: bytes | str) -> Mapping[str, Any] | None:
    """A decoder description from its JSON; None if it is not an object."""
    value = json.loads(state)
    return value if isinstance(value, dict) else None

"""Tokenizers of mistral-common, which also turns chats into ids: `--tokenizer-mode mistral`.

Texts of users never become control tokens there, whatever they look like; so what a chat becomes travels as ids beside
its text (`EncodedText`). It knows no chat templates and no requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from quire.errors import BadRequest, CheckpointError, ConfigError
from quire.text.long_texts import Piece
from quire.text.pieces import BYTE_ALPHABET
from quire.text.room import Room
from quire.text.tokenizer import Texts

PATTERNS = ("tekken.json", "tekken*.json", "tokenizer.model.v*", "*.model.v*", "tokenizer.model")
"""Files that it can read, the first that is there wins."""

_CALL_ID = re.compile(r"[a-zA-Z0-9]{9}")
_SPM_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
_CHARACTERS = {byte: char for char, byte in BYTE_ALPHABET.items()}
"""For `str.translate` of bytes read as Latin-1."""


class EncodedText(str):
    """A text with the ids that it is of; a part of it is a plain string again."""

    token_ids: tuple[int, ...]

    def __new__(cls, text: str, token_ids: Iterable[int]) -> EncodedText:  # noqa: D102 - says its class
        made = super().__new__(cls, text)
        made.token_ids = tuple(token_ids)
        return made


class MistralLibrary:
    """A tokenizer of mistral-common: a vocabulary of bytes (tekken) or of SentencePiece."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: a `MistralTokenizer`."""
        self._whole, self._base = tokenizer, tokenizer.instruct_tokenizer.tokenizer
        self._of_bytes = hasattr(self._base, "id_to_byte_piece")
        self._control = {self._base.id_to_piece(i): i for i in sorted(self._base.special_ids)}
        self._control_texts = {i: text for text, i in self._control.items()}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})").split

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of a text. Without special tokens it is taken for a prompt in which control tokens are written out."""
        if isinstance(text, EncodedText):
            return list(text.token_ids)
        if add_special_tokens:
            return list(self._base.encode(text, bos=True, eos=False))
        ids: list[int] = []
        for i, piece in enumerate(self._split(text)):
            ids += [self._control[piece]] if i % 2 else self._base.encode(piece, bos=False, eos=False) if piece else []
        return ids

    def pieces(self, text: str) -> Iterator[Piece]:
        """Ids of a long text, in one piece."""
        yield Piece(self.encode(text, add_special_tokens=False), len(text))

    @property
    def around(self) -> tuple[list[int], list[int]] | None:
        """Special tokens before and after a text: the begin-of-text token."""
        return [self._base.bos_id], []

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        """Ids of each text."""
        return [self.encode(text, add_special_tokens) for text in texts]

    def encode_within(self, texts: Sequence[Texts], room: Room) -> list[tuple[list[int], list[int]]]:
        """Ids and token types (all 0) of each text or pair after the begin-of-text token, cut so that it fits."""
        return [self._within((text,) if isinstance(text, str) else text, room) for text in texts]

    def _within(self, texts: Sequence[str], room: Room) -> tuple[list[int], list[int]]:
        parts = [list(self._base.encode(text, bos=False, eos=False)) for text in texts]
        shares = room.shares(len(parts[0]), sum(map(len, parts[1:])), 1)
        ids = [self._base.bos_id]
        for part, share in zip(parts, shares, strict=False):
            ids += [part[i] for i in room.kept(len(part), share)]
        return ids, [0] * len(ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
        """Text of ids."""
        texts: list[str] = []
        run: list[int] = []
        for token in [i for i in ids if 0 <= i < self._base.n_words]:
            if token not in self._control_texts:
                run.append(token)
            elif not skip_special_tokens:
                texts += [
                    self._base.decode(run, special_token_policy=self._ignore) if run else "",
                    self._control_texts[token],
                ]
                run = []
        return "".join([*texts, self._base.decode(run, special_token_policy=self._ignore) if run else ""])

    def vocab(self) -> Mapping[str, int]:
        """Every token: of a vocabulary of bytes in the alphabet that byte-level vocabularies are written in."""
        return {self._string(token): token for token in reversed(range(self._base.n_words))} | self._control

    def _string(self, token: int) -> str:
        if not self._of_bytes or token in self._control_texts:
            return str(self._base.id_to_piece(token))
        piece: bytes = self._base.id_to_byte_piece(token, self._keep)
        return piece.decode("latin-1").translate(_CHARACTERS)

    @cached_property
    def _ignore(self) -> Any:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        return SpecialTokenPolicy.IGNORE

    @cached_property
    def _keep(self) -> Any:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        return SpecialTokenPolicy.KEEP

    def special(self) -> Iterable[int]:
        """Ids of control tokens."""
        return list(self._control_texts)

    def added(self) -> Iterable[int]:
        """The same: their strings are plain text."""
        return list(self._control_texts)

    def decoder(self) -> Mapping[str, Any]:
        """How its strings become text."""
        return {"type": "ByteLevel"} if self._of_bytes else _SPM_DECODER

    def special_tokens(self) -> dict[str, str]:
        """Texts of the named special tokens."""
        named = {"bos_token": self._base.bos_id, "eos_token": self._base.eos_id, "unk_token": self._base.unk_id}
        return {name: self._control_texts[i] for name, i in named.items() if i in self._control_texts}

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Texts of all control tokens."""
        return tuple(self._control)

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, go_on: bool
    ) -> EncodedText:
        """A chat as the model reads it. go_on: leave the last message open.

        Raises BadRequest for messages that models of this kind do not take, in mistral-common's words.
        """
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        given: dict[str, Any] = {"messages": [_message(one) for one in messages]}
        if tools:
            given["tools"] = [_tool(tool) for tool in tools]
        try:
            request = ChatCompletionRequest.from_openai(**given, continue_final_message=go_on)
            ids = self._whole.encode_chat_completion(request).tokens
        except (MistralCommonException, ValueError, AssertionError) as error:  # pydantic's is a ValueError
            raise BadRequest(f"`messages`: {' '.join(str(error).split())[:400]}", "messages") from error
        return EncodedText(self.decode(ids, False, True), ids)


def load_mistral(folder: Path) -> MistralLibrary:
    """The tokenizer of mistral-common in a folder. Raises CheckpointError, and ConfigError without the package."""
    found = next((path for pattern in PATTERNS for path in sorted(folder.glob(pattern), reverse=True)), None)
    if found is None:
        raise CheckpointError(
            f"{folder} has no tokenizer for --tokenizer-mode mistral: expected tekken.json or tokenizer.model.v1 … v11."
        )
    try:
        from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    except ImportError as error:
        raise ConfigError(
            "--tokenizer-mode mistral needs the mistral-common package: pip install 'mistral-common[sentencepiece]'."
        ) from error
    try:
        return MistralLibrary(MistralTokenizer.from_file(str(found)))
    except Exception as error:  # the library raises many kinds for a file it cannot use
        raise CheckpointError(f"{found} cannot be read as a tokenizer: {' '.join(str(error).split())[:300]}") from error


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """What mistral-common knows of a message; arguments of calls as JSON, ids of calls as short as it wants them."""
    made = {name: message[name] for name in ("role", "content", "name") if message.get(name) is not None}
    made.setdefault("content", "")
    if message.get("tool_call_id") is not None:
        made["tool_call_id"] = _call_id(str(message["tool_call_id"]))
    if message.get("tool_calls"):
        made["tool_calls"] = [
            {
                "id": _call_id(str(call.get("id", ""))),
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in message["tool_calls"]
        ]
    return made


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise BadRequest("`tools` must be functions.", "tools")
    known = ("name", "description", "parameters")
    return {"type": "function", "function": {name: function[name] for name in known if function.get(name) is not None}}


def _call_id(given: str) -> str:
    """The same for a call and its result."""
    return given if _CALL_ID.fullmatch(given) else blake2b(given.encode(), digest_size=8).hexdigest()[:9]

"""Tokenizers of mistral-common, which also encode chats: `--tokenizer-mode mistral`.

mistral-common never turns user text into control tokens. An encoded chat therefore carries its ids along with its
text (`EncodedText`) instead of being tokenized again.
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
from quire.text.tokenizer.long_texts import TextBlock
from quire.text.tokenizer.pair_truncation import PairTruncation
from quire.text.tokenizer.token_bytes import BYTE_ALPHABET
from quire.text.tokenizer.tokenizer import Texts

PATTERNS = ("tekken.json", "tekken*.json", "tokenizer.model.v*", "*.model.v*", "tokenizer.model")
"""Tokenizer files in order of preference."""

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
    """A text with the token ids it was decoded from. Slices of it are plain strings without ids."""

    token_ids: tuple[int, ...]

    def __new__(cls, text: str, token_ids: Iterable[int]) -> EncodedText:
        encoded = super().__new__(cls, text)
        encoded.token_ids = tuple(token_ids)
        return encoded


class MistralBackend:
    """Back end of a `MistralTokenizer`: a byte vocabulary (tekken) or a SentencePiece vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._chat_tokenizer, self._base = tokenizer, tokenizer.instruct_tokenizer.tokenizer
        self._is_byte_level = hasattr(self._base, "id_to_byte_piece")
        self._control = {self._base.id_to_piece(i): i for i in sorted(self._base.special_ids)}
        self._control_texts = {i: text for text, i in self._control.items()}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})").split

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Encode a text. Without `add_special_tokens`, control tokens that are written out in it are recognized."""
        if isinstance(text, EncodedText):
            return list(text.token_ids)
        if add_special_tokens:
            return list(self._base.encode(text, bos=True, eos=False))
        ids: list[int] = []
        for i, part in enumerate(self._split(text)):
            ids += [self._control[part]] if i % 2 else self._base.encode(part, bos=False, eos=False) if part else []
        return ids

    def encode_blocks(self, text: str) -> Iterator[TextBlock]:
        """Encode a long text as a single block."""
        yield TextBlock(self.encode(text, add_special_tokens=False), len(text))

    @property
    def surrounding_tokens(self) -> tuple[list[int], list[int]] | None:
        """The begin-of-text token before a text, nothing after it."""
        return [self._base.bos_id], []

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
        return [self.encode(text, add_special_tokens) for text in texts]

    def encode_truncated(self, texts: Sequence[Texts], truncation: PairTruncation) -> list[tuple[list[int], list[int]]]:
        """Encode each text or pair after a begin-of-text token and truncate it. All token types are 0."""
        return [self._truncated((text,) if isinstance(text, str) else text, truncation) for text in texts]

    def _truncated(self, texts: Sequence[str], truncation: PairTruncation) -> tuple[list[int], list[int]]:
        parts = [list(self._base.encode(text, bos=False, eos=False)) for text in texts]
        num_kept = truncation.split(len(parts[0]), sum(map(len, parts[1:])), 1)
        ids = [self._base.bos_id]
        for part, count in zip(parts, num_kept, strict=False):
            ids += [part[i] for i in truncation.kept_range(len(part), count)]
        return ids, [0] * len(ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool, spaces_between_special_tokens: bool) -> str:
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
        """Every token. A byte vocabulary is written in the alphabet of byte-level vocabularies."""
        return {self._string(token): token for token in reversed(range(self._base.n_words))} | self._control

    def _string(self, token: int) -> str:
        if not self._is_byte_level or token in self._control_texts:
            return str(self._base.id_to_piece(token))
        token_bytes: bytes = self._base.id_to_byte_piece(token, self._keep)
        return token_bytes.decode("latin-1").translate(_CHARACTERS)

    @cached_property
    def _ignore(self) -> Any:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        return SpecialTokenPolicy.IGNORE

    @cached_property
    def _keep(self) -> Any:
        from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

        return SpecialTokenPolicy.KEEP

    def special_ids(self) -> Iterable[int]:
        return list(self._control_texts)

    def added_ids(self) -> Iterable[int]:
        """The control tokens, whose vocabulary strings are plain text."""
        return list(self._control_texts)

    def decoder_config(self) -> Mapping[str, Any]:
        """The equivalent decoder in the JSON format of `tokenizers`."""
        return {"type": "ByteLevel"} if self._is_byte_level else _SPM_DECODER

    def special_tokens(self) -> dict[str, str]:
        """Texts of the special tokens by their names in Hugging Face's format."""
        named = {"bos_token": self._base.bos_id, "eos_token": self._base.eos_id, "unk_token": self._base.unk_id}
        return {name: self._control_texts[i] for name, i in named.items() if i in self._control_texts}

    @property
    def control_tokens(self) -> tuple[str, ...]:
        return tuple(self._control)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        continue_final_message: bool,
    ) -> EncodedText:
        """The prompt of a chat. continue_final_message: leave the last message open.

        Raises BadRequest, with the message of mistral-common, for a chat that it does not accept.
        """
        from mistral_common.exceptions import MistralCommonException
        from mistral_common.protocol.instruct.request import ChatCompletionRequest

        fields: dict[str, Any] = {"messages": [_to_mistral_message(message) for message in messages]}
        if tools:
            fields["tools"] = [_to_mistral_tool(tool) for tool in tools]
        try:
            request = ChatCompletionRequest.from_openai(**fields, continue_final_message=continue_final_message)
            ids = self._chat_tokenizer.encode_chat_completion(request).tokens
        except (MistralCommonException, ValueError, AssertionError) as error:  # a pydantic error is a ValueError
            raise BadRequest(f"`messages`: {' '.join(str(error).split())[:400]}", "messages") from error
        return EncodedText(self.decode(ids, False, True), ids)


def load_mistral(folder: Path) -> MistralBackend:
    """Load the tokenizer of a folder. Raises CheckpointError, or ConfigError if mistral-common is not installed."""
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
        return MistralBackend(MistralTokenizer.from_file(str(found)))
    except Exception as error:  # the library raises many kinds of errors for a bad file
        raise CheckpointError(f"{found} cannot be read as a tokenizer: {' '.join(str(error).split())[:300]}") from error


def _to_mistral_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message that mistral-common accepts, with call arguments as JSON text and call ids shortened."""
    result = {name: message[name] for name in ("role", "content", "name") if message.get(name) is not None}
    result.setdefault("content", "")
    if message.get("tool_call_id") is not None:
        result["tool_call_id"] = _short_call_id(str(message["tool_call_id"]))
    if message.get("tool_calls"):
        result["tool_calls"] = [
            {
                "id": _short_call_id(str(call.get("id", ""))),
                "type": "function",
                "function": {
                    "name": call["function"]["name"],
                    "arguments": json.dumps(call["function"]["arguments"], ensure_ascii=False),
                },
            }
            for call in message["tool_calls"]
        ]
    return result


def _to_mistral_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        raise BadRequest("`tools` must be functions.", "tools")
    known = ("name", "description", "parameters")
    return {"type": "function", "function": {name: function[name] for name in known if function.get(name) is not None}}


def _short_call_id(call_id: str) -> str:
    """An id of nine characters, a function of `call_id` so that a call and its result keep matching."""
    return call_id if _CALL_ID.fullmatch(call_id) else blake2b(call_id.encode(), digest_size=8).hexdigest()[:9]

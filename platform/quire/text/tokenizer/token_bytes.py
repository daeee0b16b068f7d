"""Converts vocabulary strings to the bytes of text they stand for, based on the JSON of the tokenizer's decoder.

Single tokens are shown as bytes because a token may hold part of a character.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
"""Vocabulary string of a single byte, in vocabularies without a byte alphabet."""

SPACE = "\u2581"


def _byte_alphabet() -> dict[str, int]:
    """The bytes of GPT-2's byte alphabet, by character.

    A printable Latin-1 character is its own byte; the other bytes are written, in order, as U+0100 and following.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """Bytes of a token of a byte-level vocabulary. A token with characters outside the alphabet is plain text."""
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def decoder_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The steps of a decoder's JSON as a flat list of objects, each with a `type`."""
    if not decoder:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder["decoders"] for step in decoder_steps(inner)]
    return [decoder]


def make_byte_converter(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
    """A function that returns the bytes that a vocabulary string adds in the middle of a text."""
    steps = decoder_steps(decoder)
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return byte_level_bytes
    by_kind = {step["type"]: step for step in steps}
    if "WordPiece" in kinds:
        prefix = by_kind["WordPiece"].get("prefix", "##")
        return lambda token: (token.removeprefix(prefix) if token.startswith(prefix) else " " + token).encode()
    if "BPEDecoder" in kinds:
        suffix = by_kind["BPEDecoder"].get("suffix", "</w>")
        return lambda token: token.replace(suffix, " ").encode()
    space = by_kind["Metaspace"].get("replacement", SPACE) if "Metaspace" in kinds else SPACE

    def spaced(token: str) -> bytes:
        byte = BYTE_TOKEN.match(token) if "ByteFallback" in kinds else None
        return bytes([int(byte[1], 16)]) if byte else token.replace(space, " ").encode("utf-8", "replace")

    return spaced


class TokenTexts(dict[int, str | None]):
    """By id, the text that a token adds in the middle of a text; None for part of a character. Filled on first access.

    token_bytes: gives the bytes of an id. skipped: ids without any text.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], skipped: frozenset[int]) -> None:
        super().__init__()
        self._token_bytes, self._skipped = token_bytes, skipped

    def __missing__(self, token_id: int) -> str | None:
        data = b"" if token_id in self._skipped else self._token_bytes(token_id)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text

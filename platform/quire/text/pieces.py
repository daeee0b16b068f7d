"""What bytes of text a vocabulary entry stands for.

Needed where a token is shown alone: a token may hold half of a character, which no string can say.
It reads the tokenizer's decoder description (its JSON) and knows no other part of a tokenizer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
"""How vocabularies without a byte alphabet write a single byte."""

SPACE = "\u2581"


def _byte_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte in byte-level vocabularies.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, for U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


def byte_level(token: str) -> bytes:
    """Bytes of a token of a byte-level vocabulary; one with a character outside the alphabet is plain text."""
    try:
        return bytes([BYTE_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def decoder_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """A decoder's description as a flat list of steps, each with a `type`."""
    if not decoder:
        return []
    if decoder.get("type") == "Sequence":
        return [step for inner in decoder["decoders"] for step in decoder_steps(inner)]
    return [decoder]


def bytes_of(decoder: Mapping[str, Any] | None) -> Callable[[str], bytes]:
    """A function from a vocabulary string to the bytes it adds in the middle of a text."""
    steps = decoder_steps(decoder)
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return byte_level
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

"""How much a JSON text would become, counted before any of it becomes Python objects.

A number takes 7 bytes and an empty list a few more, so a body of some MB may stand for millions of objects, which
take seconds to make and hundreds of MB to keep. Strings are cheap, however long.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from quire.server.errors import Malformed

MAX_DEPTH = 100
CONTAINER_SHARE = 8
"""Lists, objects and their members may be this fraction of all values: they take so much longer to make."""

MAX_ESCAPES = 8 << 20
"""Backslashes in all strings: each costs the parser as much as a number."""

PIECE = 128 << 10
"""Bytes looked at in one go: other threads get their turn between two."""

_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


@dataclass(slots=True)
class _Counts:
    values: int = 1
    containers: int = 0
    members: int = 0
    depth: int = 0
    deepest: int = 0

    def add(self, outside: bytes) -> None:
        """Count what a piece without its strings has."""
        self.values += outside.count(b",")
        self.members += outside.count(b":")
        brackets = outside.translate(_STEPS, _NOT_BRACKETS)
        if brackets:
            depths = array("l", accumulate(array("b", brackets), initial=self.depth))
            self.containers += brackets.count(b"\x01")
            deepest = max(depths)
            self.deepest = max(self.deepest, deepest)
            self.depth = depths[-1]


def check_bounds(data: bytes, max_values: int) -> None:
    """Raise `Malformed` for more values, containers, members or levels than are allowed.

    max_values: of any kind; lists and objects, and members of objects, may each be an eighth of that. What is no
    valid JSON is left to the parser, but counts as what it looks like.
    """
    counts = _Counts()
    most = max(1, max_values // CONTAINER_SHARE)
    for outside in _outside_strings(data):
        counts.add(outside)
        if counts.values > max_values:
            raise Malformed(f"The body has more than {max_values} JSON values (--max-json-values).")
        if counts.containers > most or counts.members > most:
            raise Malformed(
                f"The body has more than {most} lists and objects, or members of objects: an eighth of the {max_values}"
                " JSON values that it may have (--max-json-values)."
            )
        if counts.deepest > MAX_DEPTH:
            raise Malformed(f"The body is nested more than {MAX_DEPTH} levels deep.")


def _outside_strings(data: bytes) -> Iterator[bytes]:
    """The text without its strings, piece by piece."""
    begin, inside = 0, False
    escapes = 0
    while begin < len(data):
        end = _end_of_piece(data, begin)
        piece = data[begin:end]
        if b"\\" in piece:  # an escaped quote ends nothing
            escapes += piece.count(b"\\")
            if escapes > MAX_ESCAPES:
                raise Malformed(f"The body has more than {MAX_ESCAPES} backslashes in its strings.")
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        yield b"".join(parts[1 if inside else 0 :: 2])
        inside ^= len(parts) % 2 == 0
        begin = end


def _end_of_piece(data: bytes, begin: int) -> int:
    """Where a piece may end without parting an escape: not after a backslash."""
    end = min(begin + PIECE, len(data))
    while end < len(data) and data[end - 1] == 0x5C:
        end += 1
    return end

"""Reads the values of a GGUF header one after another, under limits on counts, lengths and nesting."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import TypeAlias

from quire.errors import CheckpointError

Value: TypeAlias = "int | float | bool | str | Sequence[int | float | str]"
"""A value of the metadata. Arrays of numbers are `array.array`; those of booleans have 0 and 1."""

MAX_STRING_BYTES = 64 << 20
WINDOW_BYTES = 1 << 20
MAX_ELEMENTS = 1 << 23
"""Limit for the elements of all arrays of a file; the largest vocabularies have 2 ** 18 tokens."""

STRING, ARRAY, BOOL = 8, 9, 7
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "B", 10: "Q", 11: "q", 12: "d"}
"""Code of `struct` and `array` for each type of number, by its id in the file."""


def _packs_to(number: float, stored: bytes) -> bool:
    try:
        return struct.pack("<f", number) == stored
    except OverflowError:  # rounded up beyond the largest float32
        return False


class Cursor:
    """A position in the bytes of a header. name: of the file, for errors."""

    def __init__(self, data: memoryview, name: str) -> None:
        self._data, self.name = data, name
        self.position = 0
        self._elements = 0

    def error(self, reason: str) -> CheckpointError:
        return CheckpointError(f"{self.name} is not a usable GGUF file: {reason}.")

    def number(self, code: str, what: str) -> int:
        """A little-endian number. code: of `struct`. what: for the error if the file ends before it."""
        size = struct.calcsize(f"<{code}")
        if len(self._data) - self.position < size:
            raise self.error(f"it ends in {what}")
        (value,) = struct.unpack_from(f"<{code}", self._data, self.position)
        self.position += size
        return int(value)

    def text(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        """A string: its length in bytes (uint64), then UTF-8."""
        length = self.number("Q", what)
        if length > min(limit, len(self._data) - self.position):
            raise self.error(f"{what} has {length} bytes, more than {limit} or the rest of the file")
        start, self.position = self.position, self.position + length
        try:
            return str(self._data[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} is not valid UTF-8") from None

    def value(self, kind: int, key: str) -> Value:
        """The value of `key`. kind: id of its type."""
        if kind == STRING:
            return self.text(f"the value of {key!r}")
        if kind == ARRAY:
            return self._array(key)
        if kind not in _NUMBERS:
            raise self.error(f"{key!r} has a value of the unknown type {kind}")
        if kind in (6, 12):
            return self._float(_NUMBERS[kind], key)
        number = self.number(_NUMBERS[kind], f"the value of {key!r}")
        if kind != BOOL:
            return number
        if number > 1:
            raise self.error(f"the boolean {key!r} is {number}")
        return bool(number)

    def _float(self, code: str, key: str) -> float:
        size = struct.calcsize(f"<{code}")
        if len(self._data) - self.position < size:
            raise self.error(f"it ends in the value of {key!r}")
        start, self.position = self.position, self.position + size
        stored = bytes(self._data[start : self.position])
        (value,) = struct.unpack(f"<{code}", stored)
        if code == "d" or not math.isfinite(value):
            return float(value)
        shorter = (float(f"{value:.{digits}g}") for digits in range(6, 10))  # 1e-06 rather than 9.999999974752427e-07
        return next(number for number in shorter if _packs_to(number, stored))

    def _array(self, key: str) -> Sequence[int | float | str]:
        what = f"the array {key!r}"
        kind, count = self.number("I", what), self.number("Q", what)
        if kind == ARRAY:
            raise self.error(f"{what} has arrays as elements, which no model needs")
        if kind != STRING and kind not in _NUMBERS:
            raise self.error(f"{what} has elements of the unknown type {kind}")
        size = 8 if kind == STRING else struct.calcsize(f"<{_NUMBERS[kind]}")
        if count * size > len(self._data) - self.position:
            raise self.error(f"{what} has {count} elements, more than the rest of the file")
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise self.error(f"with {what} its metadata has more than {MAX_ELEMENTS} elements")
        if kind == STRING:
            return self._strings(count, what)
        start, self.position = self.position, self.position + count * size
        numbers = array(_NUMBERS[kind])
        numbers.frombytes(self._data[start : self.position])
        return numbers

    def _strings(self, count: int, what: str) -> list[str]:
        """Strings of a long array: as `text`, without a call for each that is inside a copied window of the file."""
        read, strings = struct.Struct("<Q").unpack_from, list[str]()
        while len(strings) < count:
            window, at = bytes(self._data[self.position : self.position + WINDOW_BYTES]), 0
            try:
                for _ in range(count - len(strings)):
                    end = at + 8 + (read(window, at)[0] if at + 8 <= len(window) else len(window))
                    if end > len(window):
                        break
                    strings.append(window[at + 8 : end].decode())
                    at = end
            except UnicodeDecodeError:
                raise self.error(f"element {len(strings)} of {what} is not valid UTF-8") from None
            self.position += at
            if not at:  # longer than a window, or than the file
                strings.append(self.text(f"element {len(strings)} of {what}"))
        return strings

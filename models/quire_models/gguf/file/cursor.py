"""Reads the values of a GGUF header one after another, under limits on counts, lengths and nesting."""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, overload

from quire.errors import CheckpointError

Value: TypeAlias = "int | float | bool | str | Sequence[int | float | str]"
"""A value of the metadata. Arrays of numbers are `array.array`, those of booleans have 0 and 1; of texts `Texts`."""

MAX_STRING_BYTES = 64 << 20
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


class Texts(Sequence[str]):
    """The strings of an array, decoded when they are read: most readers of a file need none of its many tokens.

    Reading one that is not valid UTF-8 raises CheckpointError.
    """

    def __init__(self, stored: bytes, ends: array[int], what: str, error: Callable[[str], CheckpointError]) -> None:
        """stored: for each string its length (uint64) and its bytes. ends: positions in `stored`. what: for errors."""
        self._stored, self._ends, self._what, self._error = stored, ends, what, error

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        start = 8 + (self._ends[at - 1] if at else 0)
        try:
            return self._stored[start : self._ends[at]].decode()
        except UnicodeDecodeError:
            raise self._error(f"element {at} of {self._what} is not valid UTF-8") from None

    def __iter__(self) -> Iterator[str]:
        start = 8
        for at, end in enumerate(self._ends):
            try:
                yield self._stored[start:end].decode()
            except UnicodeDecodeError:
                raise self._error(f"element {at} of {self._what} is not valid UTF-8") from None
            start = end + 8


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
            return self._texts(count, what)
        start, self.position = self.position, self.position + count * size
        numbers = array(_NUMBERS[kind])
        numbers.frombytes(self._data[start : self.position])
        return numbers

    def _texts(self, count: int, what: str) -> Texts:
        """Strings of a long array: only their lengths are read now."""
        read, data, size = struct.Struct("<Q").unpack_from, self._data, len(self._data)
        start = at = self.position
        ends = array("Q")
        for index in range(count):
            length = read(data, at)[0] if at + 8 <= size else size
            at += 8 + length
            if at > size or length > MAX_STRING_BYTES:
                element = f"element {index} of {what}"
                raise self.error(f"{element} has {length} bytes, more than {MAX_STRING_BYTES} or the rest of the file")
            ends.append(at - start)
        self.position = at
        return Texts(bytes(data[start:at]), ends, what, self.error)

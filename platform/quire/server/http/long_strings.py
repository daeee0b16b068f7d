"""Parses JSON with very long strings, such as pictures in base64, without stopping other threads.

A parser holds the GIL while it creates a string. Of 30 MB that takes 30 to 60 ms, most of it page faults of the memory
that the string is copied to. Here such a string is cut out of the text before it is parsed, and its characters are
copied by `ctypes.memmove`, which releases the GIL.
"""

from __future__ import annotations

import ctypes
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

LONG = 4 << 20
"""Strings of fewer bytes are left to the parser."""

BLOCK_BYTES = 1 << 20
"""Bytes checked in one go: other threads can run between two blocks."""

MAX_SPACES = 1024
"""White space around a string with which it is still recognized."""

_PLAIN = bytes(set(range(0x20, 0x7F)) - set(b'"\\'))
"""Characters that stand for themselves in a JSON string and take one byte in memory."""

_MAX_ASCII = 127

_new_string = ctypes.pythonapi.PyUnicode_New  # https://docs.python.org/3/c-api/unicode.html
_new_string.restype, _new_string.argtypes = ctypes.py_object, (ctypes.c_ssize_t, ctypes.c_uint32)


def decode(data: bytes) -> Any:
    """The value of a JSON text. Raises what `msgspec.json.decode` raises."""
    runs = list(_plain_runs(data))
    if not runs:
        return msgspec.json.decode(data)
    secret = secrets.token_hex(16)
    marks = {f"{secret}{number}": run for number, run in enumerate(runs)}
    try:
        value = msgspec.json.decode(_with_marks(data, marks))
    except msgspec.DecodeError:  # a run was not inside a string, or the text is wrong
        return msgspec.json.decode(data)
    if _put_strings_back(value, data, marks) < len(marks):  # a key, or part of a string with an escaped quote
        return msgspec.json.decode(data)
    return value


def _plain_runs(data: bytes) -> Iterator[tuple[int, int]]:
    """Begin and end of the long texts of plain characters between two quotes."""
    at = LONG // 2
    while at < len(data):
        begin, end = data.rfind(b'"', 0, at) + 1, data.find(b'"', at)
        if end < 0:
            return
        if begin and end - begin >= LONG and _is_value(data, begin, end) and _is_plain(data, begin, end):
            yield begin, end
        at = max(at, end) + LONG // 2


def _is_value(data: bytes, begin: int, end: int) -> bool:
    """Whether what is around the quotes looks as if a value were between them. `decode` finds out if it is none."""
    before, after = data[max(0, begin - 1 - MAX_SPACES) : begin - 1], data[end + 1 : end + 1 + MAX_SPACES]
    return before.rstrip()[-1:] in (b":", b",", b"[") and after.lstrip()[:1] in (b",", b"]", b"}")


def _is_plain(data: bytes, begin: int, end: int) -> bool:
    blocks = (data[at : min(at + BLOCK_BYTES, end)] for at in range(begin, end, BLOCK_BYTES))
    return not any(block.translate(None, _PLAIN) for block in blocks)


def _with_marks(data: bytes, marks: Mapping[str, tuple[int, int]]) -> bytes:
    """The text with each mark in place of its run."""
    pieces = []
    done = 0
    for mark, (begin, end) in marks.items():
        pieces += [data[done:begin], mark.encode()]
        done = end
    return b"".join([*pieces, data[done:]])


def _put_strings_back(value: Any, data: bytes, marks: Mapping[str, tuple[int, int]]) -> int:
    """Replace the marks among the values of a tree by their strings; returns how many there were."""
    found = 0
    containers = [value]
    while containers:
        container = containers.pop()
        if isinstance(container, dict | list):
            for key, part in container.items() if isinstance(container, dict) else enumerate(container):
                if isinstance(part, dict | list):
                    containers.append(part)
                elif isinstance(part, str) and part in marks:
                    container[key] = _ascii_string(data, *marks[part])
                    found += 1
    return found


def _ascii_string(data: bytes, begin: int, end: int) -> str:
    """`data[begin:end].decode("ascii")`, copied without the GIL. Other threads do not know the string meanwhile.

    CPython stores the characters of an ASCII string after its header, and a NUL after them.
    """
    text: str = _new_string(end - begin, _MAX_ASCII)
    header = text.__sizeof__() - len(text) - 1
    source = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
    ctypes.memmove(id(text) + header, source + begin, end - begin)
    return text

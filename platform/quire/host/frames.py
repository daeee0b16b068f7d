"""Messages on a stream of bytes: before each stands its length. It knows nothing of what they say."""

from __future__ import annotations

import struct

_LENGTH = struct.Struct("<Q")
_HEAD = _LENGTH.size


def framed(data: bytes) -> bytes:
    """A message as it travels."""
    return _LENGTH.pack(len(data)) + data


class Frames:
    """Puts messages together from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[memoryview]:
        """The messages that `data` completes, in order."""
        stream: bytes | bytearray = data
        if self._rest:
            self._rest += data
            stream = self._rest
        view, found, begin = memoryview(stream), [], 0
        while len(view) >= begin + _HEAD:
            end = begin + _HEAD + _LENGTH.unpack_from(view, begin)[0]
            if len(view) < end:
                break
            found.append(view[begin + _HEAD : end])
            begin = end
        if begin < len(view):
            if begin or stream is data:
                self._rest = bytearray(view[begin:])
        elif self._rest:
            self._rest = bytearray()
        return found

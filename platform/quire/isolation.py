"""Calling functions that read files of others apart from everything else, and memory that they may leave behind.

What a file makes of the process that reads it is then that process's affair: it may take too long, need too much
memory, or crash.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

PIECE = 8 << 20


class SharedBytes:
    """Bytes in memory of no process: one fills it, others map it. It is an open file without a name."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is closed when the bytes were mapped, or this object is gone."""
        self._descriptor = descriptor

    @classmethod
    def create(cls) -> SharedBytes:
        """Empty. Raises OSError."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("quire-files", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        descriptor, path = tempfile.mkstemp()
        os.unlink(path)
        return cls(descriptor)

    def fileno(self) -> int:
        """The open file."""
        return self._descriptor

    def copy(self, descriptor: int, count: int) -> int:
        """Append so many bytes of another file, from its beginning; fewer if it ends sooner. Raises OSError."""
        done = 0
        while done < count:
            if sys.platform == "linux":
                copied = os.sendfile(self._descriptor, descriptor, done, min(PIECE, count - done))
            else:
                copied = len(piece := os.pread(descriptor, min(PIECE, count - done), done))
                self.append(piece)
            if not copied:
                break
            done += copied
        return done

    def append(self, content: bytes | memoryview) -> None:
        """Add bytes at the end. Raises OSError."""
        left = memoryview(content)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def seal(self) -> None:
        """Forbid any further change, where the system can do that."""
        if hasattr(os, "memfd_create"):
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def map(self) -> memoryview:
        """The bytes, which are freed with the last view of them; what is written there stays private.

        Raises OSError if there are none, or another process could still change them.
        """
        try:
            if hasattr(os, "memfd_create") and fcntl.fcntl(self._descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise OSError("the memory may still change")
            size = os.fstat(self._descriptor).st_size
            return memoryview(mmap.mmap(self._descriptor, size, mmap.MAP_PRIVATE)) if size else memoryview(bytearray())
        finally:
            self.close()

    def close(self) -> None:
        """Give up this side's hold."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


_SEALS = (
    fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
    if hasattr(os, "memfd_create")
    else 0
)


@dataclass(frozen=True)
class Shared:
    """What a function gives beside plain data: value: the plain data; memory: bytes that are not copied."""

    value: Any
    memory: SharedBytes


class CallsApart(Protocol):
    """Calls functions of modules, by their names, with plain data: what JSON can hold."""

    def prepare(self, function: Callable[..., Any]) -> None:
        """Soon this one will be called: what takes time may be done now, in the background."""
        ...

    def __call__(self, function: Callable[..., Any], *args: Any, memory_bytes: int = 0) -> Any:
        """What `function(*args)` gives: plain data (tuples become lists), or `Shared`.

        memory_bytes: what it may take beside the usual. Raises the `QuireError` that it raises, and BadRequest
        when it takes too long or too much, or ends its process.
        """
        ...


class CallsHere:
    """Calls right here: for programs that trust the files they read, and tests."""

    def prepare(self, function: Callable[..., Any]) -> None:
        """Nothing is to be done."""

    def __call__(self, function: Callable[..., Any], *args: Any, memory_bytes: int = 0) -> Any:
        """See `CallsApart`."""
        return function(*args)

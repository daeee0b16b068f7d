"""Interface for calling functions that read untrusted files in another process, and memory that such calls return.

A file that takes too long, needs too much memory or crashes its reader then harms only that process.
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

BLOCK_BYTES = 8 << 20


class SharedBytes:
    """Bytes that one process writes and others map: an open file without a name, in memory where the system allows."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is closed when the bytes were mapped, or with this object."""
        self._descriptor = descriptor

    @classmethod
    def create(cls) -> SharedBytes:
        """An empty file. Raises OSError."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("quire-files", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
        descriptor, path = tempfile.mkstemp()
        os.unlink(path)
        return cls(descriptor)

    def fileno(self) -> int:
        return self._descriptor

    def copy(self, descriptor: int, count: int) -> int:
        """Append the first `count` bytes of another file, or all if it is shorter. Returns how many. Raises OSError."""
        done = 0
        while done < count:
            if sys.platform == "linux":
                copied = os.sendfile(self._descriptor, descriptor, done, min(BLOCK_BYTES, count - done))
            else:
                copied = len(block := os.pread(descriptor, min(BLOCK_BYTES, count - done), done))
                self.append(block)
            if not copied:
                break
            done += copied
        return done

    def append(self, content: bytes | memoryview) -> None:
        """Write at the end. Raises OSError."""
        left = memoryview(content)
        while left:
            left = left[os.write(self._descriptor, left) :]

    def seal(self) -> None:
        """Forbid further changes, on systems that can."""
        if hasattr(os, "memfd_create"):
            fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)

    def map(self) -> memoryview:
        """The bytes. They are freed with the last view of them; what is written to the view stays private.

        Raises OSError if mapping fails, or another process could still change the bytes.
        """
        try:
            if hasattr(os, "memfd_create") and fcntl.fcntl(self._descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                raise OSError("the memory may still change")
            size = os.fstat(self._descriptor).st_size
            return memoryview(mmap.mmap(self._descriptor, size, mmap.MAP_PRIVATE)) if size else memoryview(bytearray())
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptor; mapped bytes stay."""
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
    """A result with bytes that are not copied. value: plain data. memory: the bytes."""

    value: Any
    memory: SharedBytes


class SubprocessCalls(Protocol):
    """Calls functions of modules, by name, with plain data: what JSON can hold."""

    def prepare(self, function: Callable[..., Any]) -> None:
        """Start a process for a function that will be called soon, in the background."""
        ...

    def __call__(self, function: Callable[..., Any], *args: Any, memory_bytes: int = 0) -> Any:
        """The result of `function(*args)`: plain data (tuples become lists), or `Shared`.

        memory_bytes: memory that it may take in addition to the usual limit. Raises the `QuireError` that it raises,
        and BadRequest if it exceeds a limit or ends its process.
        """
        ...


class InProcessCalls:
    """Calls in this process: for programs that trust the files they read, and for tests."""

    def prepare(self, function: Callable[..., Any]) -> None:
        """Does nothing: there is no process to start."""

    def __call__(self, function: Callable[..., Any], *args: Any, memory_bytes: int = 0) -> Any:
        return function(*args)

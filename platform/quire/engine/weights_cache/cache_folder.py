"""The folder of `--weights-cache`: files by name, of which the least recently used are deleted to make room."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

SUFFIX, UNFINISHED = ".weights", ".unfinished"
LEFT_BEHIND_S = 3600
"""Seconds without writes after which an unfinished file is one of a process that has ended."""

KEEP_FREE = 1 << 30
"""Bytes of the disk that a new file leaves free."""


class CacheFolder:
    """Files of packed weights with at most `max_bytes` together. Several processes may use a folder."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes

    def path(self, name: str) -> Path:
        """The file of a name, which may not exist."""
        return self._folder / (name + SUFFIX)

    def touch(self, name: str) -> None:
        """Note that a file was used."""
        with suppress(OSError):
            os.utime(self.path(name))

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""
        with suppress(OSError):
            self.path(name).unlink()

    def make_room(self, num_bytes: int) -> str | None:
        """Delete files until a new one of this size fits. Returns why it cannot, or None. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if num_bytes > self._max_bytes:
            return f"it would have {num_bytes} bytes, and --weights-cache-bytes is {self._max_bytes}"
        sizes: dict[Path, tuple[float, int]] = {}
        for path in self._folder.iterdir():
            with suppress(OSError):  # another process may delete it meanwhile
                status = path.stat(follow_symlinks=False)
                if path.suffix == SUFFIX:
                    sizes[path] = status.st_mtime, status.st_size
                elif path.suffix == UNFINISHED and status.st_mtime < time.time() - LEFT_BEHIND_S:
                    path.unlink()
        total = sum(size for _, size in sizes.values())
        for path in sorted(sizes, key=lambda path: sizes[path]):
            if total + num_bytes <= self._max_bytes:
                break
            with suppress(FileNotFoundError):
                path.unlink()
            total -= sizes[path][1]
        if shutil.disk_usage(self._folder).free < num_bytes + KEEP_FREE:
            return "the disk has too little room"
        return None

    def unfinished(self, name: str) -> Path:
        """A path for this process to write a file to, before it gets its name."""
        return self._folder / f"{name}-{os.getpid()}-{time.monotonic_ns()}{UNFINISHED}"

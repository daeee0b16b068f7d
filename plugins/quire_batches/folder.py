"""The folder of files and batches: one file for each content, the database, and a lock against other servers."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from quire.errors import Overloaded

UNFINISHED = ".part"
"""End of the name of a content that is being written."""


class Folder:
    """A folder that this object alone uses until `close`. Contents have the names of their ids, which the server made.

    Raises `Overloaded` if another server uses it.
    """

    def __init__(self, root: Path) -> None:
        self._contents = root / "contents"
        self._contents.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.database = root / "state.db"
        self._lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Overloaded(
                f"Another server uses the files and batches in {root}; --batches.folder gives each server its own."
            ) from None

    def close(self) -> None:
        os.close(self._lock)

    def path(self, file_id: str) -> Path:
        """Where the content of a file is."""
        return self._contents / file_id

    def write(self, file_id: str, blocks: Iterable[bytes]) -> int:
        """Write a content, which is there as a whole or not at all. Returns its number of bytes. Raises OSError."""
        unfinished = self._contents / (file_id + UNFINISHED)
        try:
            with unfinished.open("wb") as file:
                file.writelines(blocks)
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            unfinished.rename(self.path(file_id))
            self._sync()
        finally:
            unfinished.unlink(missing_ok=True)
        return size

    def remove(self, file_id: str) -> None:
        self.path(file_id).unlink(missing_ok=True)

    def remove_all_but(self, known: Collection[str]) -> None:
        """Remove contents of files that were never stored, because the server was killed before."""
        for path in self._contents.iterdir():
            if path.name not in known:
                with suppress(OSError):
                    path.unlink()

    def _sync(self) -> None:
        descriptor = os.open(self._contents, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

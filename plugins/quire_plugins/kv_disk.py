"""The plugin `kv-disk`: keeps blobs of KV pages in a folder, which several processes may share.

A blob is the file FOLDER/ab/abcdef… of its key, written under another name and renamed. The time of change of a file is
when it was last used. The file `size` has the bytes of all files; a process that changes it holds a lock on the file
`lock`. When there is no room, the least recently used files are deleted until a tenth of the space is free.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import stat
import struct
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from quire.plugin import ConfigError, KvStore, KvStoreContext, KvStoreUse, hookimpl

log = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9a-f]{8,64}")
_TEMPORARY = re.compile(r"\.[0-9]+-[0-9]+\.tmp")
_COUNT = struct.Struct("<QQI")  # bytes, files, checksum of both
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_IN_THE_WAY = (IsADirectoryError, NotADirectoryError, FileExistsError)
"""Raised where something else has the name of a file; it is left alone."""

MAX_BLOB_BYTES = 1 << 30
FREED_SHARE = 0.1
"""Of the space, once it is full."""

ABANDONED_S = 600.0
"""Age of a file that a process began to write and never renamed."""


class _File(NamedTuple):
    used_ns: int
    size: int
    path: str


class DiskStore:
    """A `KvStoreImpl` in a folder of at most `max_bytes`. Raises ConfigError if the folder cannot be used."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._numbers, self._lock = itertools.count(), threading.Lock()
        self._num_evictions, self._count = 0, (0, 0)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._locked():
                self._make_room(0)
        except OSError as error:
            raise ConfigError(f"The folder {folder} of KV pages cannot be used: {error.strerror}.") from error

    @classmethod
    def from_context(cls, context: KvStoreContext) -> DiskStore:
        """The store that the settings describe. Raises ConfigError."""
        folder, size = context.settings.get("folder"), context.settings.get("max_bytes", 10 << 30)
        if not isinstance(folder, str) or not folder:
            raise ConfigError("The store `disk` of KV pages needs a `folder`.")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"`max_bytes` of the store `disk` must be a number above 0; got {size!r:.80}.")
        return cls(Path(folder), size)

    def contains(self, keys: Sequence[str]) -> Sequence[bool]:
        """Whether there is a file, for each key."""
        return [self._size_of(self._path(key)) is not None for key in keys]

    def get(self, key: str) -> bytes | None:
        """The content of a file, which is now the most recently used one."""
        try:
            descriptor = os.open(self._path(key), _READ)
        except OSError:
            return None
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_BLOB_BYTES:
                return None
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(found.st_size + 1)
            with suppress(OSError):
                _set_used(descriptor)
            return content
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def put(self, key: str, blob: bytes, ttl_s: float | None) -> None:
        """Write a file, unless it is larger than all of the space. Raises OSError."""
        if len(blob) > min(self._max_bytes, MAX_BLOB_BYTES):
            self.remove(key)
            return
        path, temporary = self._path(key), self._folder / f".{os.getpid()}-{next(self._numbers)}.tmp"
        with self._locked():
            self._make_room(max(1, len(blob) - (self._size_of(path) or 0)))
            replaced = self._size_of(path)  # until then, other threads read the file that is there
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with open(descriptor, "wb") as file:
                    file.write(blob)
                    file.flush()
                    _set_used(descriptor)
                path.parent.mkdir(mode=0o700, exist_ok=True)
                os.replace(temporary, path)
            except BaseException as error:
                with suppress(OSError):
                    os.unlink(temporary)
                if isinstance(error, _IN_THE_WAY):
                    return
                raise
            self._add(len(blob) - (replaced or 0), int(replaced is None))

    def remove(self, key: str) -> None:
        """Delete the file of a key."""
        with self._locked():
            self._remove(self._path(key))

    def _remove(self, path: Path) -> None:
        size = self._size_of(path)
        if size is not None:
            os.unlink(path)
            self._add(-size, -1)

    def use(self) -> KvStoreUse:
        """What the folder held when this process last wrote to it."""
        num_bytes, num_files = self._count
        return KvStoreUse(num_bytes=num_bytes, num_blobs=num_files, num_evictions=self._num_evictions)

    def close(self) -> None:
        """Do nothing: no file is open."""

    # --- how much there is ------------------------------------------------------------------------------

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Meanwhile no other thread and no other process changes the folder."""
        with self._lock:
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                os.close(descriptor)  # and with it the lock

    def _make_room(self, num_bytes: int) -> None:
        """Delete files until there is room for so many bytes; 0: count what is there."""
        known = self._read_count()
        if num_bytes and known is not None and known[0] + num_bytes <= self._max_bytes:
            return
        files = sorted(self._files())
        total, limit = sum(file.size for file in files), self._max_bytes - num_bytes
        num_left = len(files)
        if total > limit:
            limit = min(limit, int(self._max_bytes * (1 - FREED_SHARE)))
        for file in files:
            if total <= limit:
                break
            with suppress(FileNotFoundError):
                os.unlink(file.path)
            total, num_left = total - file.size, num_left - 1
            self._num_evictions += 1
        self._write_count(total, num_left)

    def _files(self) -> Iterable[_File]:
        """Files of blobs; also deletes those that were never finished."""
        for folder in self._entries(self._folder):
            if _TEMPORARY.fullmatch(folder.name):
                with suppress(OSError):
                    found = folder.stat(follow_symlinks=False)
                    if found.st_mtime < time.time() - ABANDONED_S:
                        os.unlink(folder.path)
                    else:  # another process writes it
                        yield _File(time.time_ns(), found.st_size, folder.path)
            elif len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):
                for entry in self._entries(Path(folder.path)):
                    with suppress(OSError):
                        if _KEY.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                            found = entry.stat(follow_symlinks=False)
                            yield _File(found.st_mtime_ns, found.st_size, entry.path)

    def _entries(self, folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except OSError:
            return []

    def _read_count(self) -> tuple[int, int] | None:
        """(bytes, files); None if the file is damaged."""
        try:
            num_bytes, num_files, checksum = _COUNT.unpack((self._folder / "size").read_bytes()[: _COUNT.size])
        except (OSError, struct.error):
            return None
        if checksum != zlib.crc32(struct.pack("<QQ", num_bytes, num_files)):
            return None
        return num_bytes, num_files

    def _write_count(self, num_bytes: int, num_files: int) -> None:
        self._count = (num_bytes, num_files) = (max(0, num_bytes), max(0, num_files))
        checksum = zlib.crc32(struct.pack("<QQ", num_bytes, num_files))
        descriptor = os.open(self._folder / "size", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(descriptor, _COUNT.pack(num_bytes, num_files, checksum))
        finally:
            os.close(descriptor)

    def _add(self, num_bytes: int, num_files: int) -> None:
        known = self._read_count()
        if known is not None:
            self._write_count(known[0] + num_bytes, known[1] + num_files)

    def _path(self, key: str) -> Path:
        assert _KEY.fullmatch(key), f"{key!r} is no key"
        return self._folder / key[:2] / key

    def _size_of(self, path: Path) -> int | None:
        """Bytes of a file; None if there is none, or something else."""
        try:
            found = os.lstat(path)
        except OSError:
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None


def _set_used(descriptor: int) -> None:
    """Now is when a file was used last; the clock of the file system itself counts in steps of milliseconds."""
    now = time.time_ns()
    os.utime(descriptor, ns=(now, now))


@hookimpl
def quire_kv_stores() -> Iterable[KvStore]:
    """The store of `--kv-disk`."""
    yield KvStore("disk", DiskStore.from_context, frozenset({"folder", "max_bytes"}))

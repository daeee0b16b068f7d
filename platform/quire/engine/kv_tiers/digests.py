"""Digests of the files of checkpoints and adapters."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from hashlib import blake2b, sha256
from pathlib import Path

from quire import files

CHUNK_BYTES = 1 << 22
MAX_FILES = 10_000


class Unreadable(Exception):
    """The files of a folder cannot be read, or change meanwhile."""


def files_of(path: Path) -> list[Path]:
    """The regular files of a folder, by name, or the one file."""
    try:
        if not path.is_dir():
            return [path]
        found = sorted(each for each in path.iterdir() if each.is_file())
    except OSError as error:
        raise Unreadable(str(error)) from error
    if len(found) > MAX_FILES:
        raise Unreadable(f"it has more than {MAX_FILES} files")
    return found


def content_digest(path: Path, goes_on: Callable[[], bool] = lambda: True) -> bytes:
    """A digest of the names and contents of the files in a folder. Raises Unreadable.

    goes_on: asked now and then; if it returns False, the digest is given up.
    """
    whole = blake2b(digest_size=32)
    for file in files_of(path):
        hasher = sha256()
        try:
            with files.open_regular(file) as descriptor, open(descriptor, "rb", closefd=False) as opened:
                while chunk := opened.read(CHUNK_BYTES):
                    hasher.update(chunk)
                    if not goes_on():
                        raise Unreadable("it is not needed any more")
        except (OSError, files.FileRefused) as error:
            raise Unreadable(f"{file}: {error}") from error
        name = file.name.encode("utf-8", "surrogateescape")
        whole.update(len(name).to_bytes(8, "little") + name + hasher.digest())
    return whole.digest()


def state_digest(path: Path) -> bytes:
    """A digest of what the system says of the files on this machine: it changes with every write. Raises Unreadable."""
    hasher = blake2b(socket.gethostname().encode(), digest_size=32)
    for file in files_of(path):
        try:
            real, stat = os.path.realpath(file), file.stat()
        except OSError as error:
            raise Unreadable(str(error)) from error
        fields = (real, file.name, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        hasher.update(repr(fields).encode("utf-8", "surrogateescape"))
    return hasher.digest()

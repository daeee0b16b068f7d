"""Reads untrusted files of models, tokenizers and adapters under limits.

A file is read only if it is a regular file inside its root folder after links are followed. In the cache of the Hugging
Face hub, files in `snapshots/REVISION` are links to `blobs`, so the root is the folder of the repository. Opening never
blocks on a pipe or a device, and JSON with huge numbers or deep nesting is refused.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 16 << 20
"""Limit for a JSON file of settings."""

MAX_TEXT_BYTES = 1 << 30
"""Limit for a file that a library reads whole: vocabularies, merges, chat templates."""

MAX_DIGITS = 64
"""Limit for an integer in JSON. Saved tokenizers have lengths of 31 digits; sizes, counts and offsets at most 19."""

MAX_ENTRIES = 10_000
"""Limit for the entries of a folder that are checked."""

MAX_DEPTH = 4
"""How many levels below a snapshot of the hub's cache a folder may be."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class FileRefused(Exception):
    """A file must not or cannot be read. The message is a clause without the file name: "it is not a regular file".

    missing: the file does not exist.
    """

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


def root_of(folder: Path) -> Path:
    """The folder that links in `folder` must not leave: the folder itself, or its repository in the hub's cache."""
    real = folder.resolve()
    for snapshot in (real, *real.parents)[:MAX_DEPTH]:
        if snapshot.parent.name == "snapshots" and (snapshot.parent.parent / "blobs").is_dir():
            return snapshot.parent.parent
    return real


@contextmanager
def open_regular(path: Path, root: Path | None = None) -> Iterator[int]:
    """Open a regular file in `root` (default: `root_of` its folder); yields a descriptor. Raises FileRefused."""
    descriptor = _open(path, root)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check(path: Path, root: Path | None = None) -> None:
    """Raise FileRefused unless `path` is a regular file in `root`."""
    os.close(_open(path, root))


def read_bytes(path: Path, max_bytes: int, root: Path | None = None) -> bytes:
    """The content of a regular file in `root` with at most `max_bytes`. Raises FileRefused."""
    with open_regular(path, root) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > max_bytes:
            raise FileRefused(f"it has {size} bytes, and at most {max_bytes} are read")
        try:
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(max_bytes + 1)
        except (OSError, MemoryError) as error:
            raise FileRefused(f"it cannot be read ({_reason(error)})") from error
    if len(content) > max_bytes:
        raise FileRefused(f"it grew beyond {max_bytes} bytes while it was read")
    return content


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES, root: Path | None = None) -> str:
    """The content of a UTF-8 file in `root`. Raises FileRefused."""
    try:
        return read_bytes(path, max_bytes, root).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileRefused(f"it is not valid UTF-8 ({error})") from error


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES, root: Path | None = None) -> Any:
    """The value in a JSON file. Raises FileRefused."""
    return parse_json(read_bytes(path, max_bytes, root))


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text. Raises FileRefused if it is invalid, too deeply nested, or has overlong numbers."""
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise FileRefused("it is nested too deeply") from None
    except MemoryError:
        raise FileRefused("it needs too much memory") from None
    except ValueError as error:  # not JSON, or not Unicode
        raise FileRefused(f"it is not valid JSON: {error}") from error


def release_pages(data: mmap.mmap, start: int, end: int) -> None:
    """Give the memory of bytes of a private mapping, which were read and not written, back to the system.

    Only whole pages are; reading them again reads the file.
    """
    begin, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end and hasattr(mmap, "MADV_DONTNEED"):
        _advise(data, mmap.MADV_DONTNEED, begin, end)


def read_ahead(data: mmap.mmap, start: int, end: int) -> None:
    """Have the system begin to read bytes of a mapped file, where it can; returns at once."""
    begin = start // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end and hasattr(mmap, "MADV_WILLNEED"):
        _advise(data, mmap.MADV_WILLNEED, begin, end)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)


def _advise(data: mmap.mmap, advice: int, begin: int, end: int) -> None:
    """Call madvise without the GIL, which the method of `mmap` keeps while the system walks the pages."""
    address = ctypes.addressof(ctypes.c_char.from_buffer(data)) + begin
    _libc().madvise(ctypes.c_void_p(address), ctypes.c_size_t(end - begin), advice)


def check_folder(folder: Path, suffixes: frozenset[str]) -> str | None:
    """Check the files with these suffixes in a folder, before libraries open them by themselves.

    Returns a sentence about the first file that is not regular, leaves the folder or is unreasonably large; else None.
    """
    root = root_of(folder)
    try:
        names = [entry.name for _, entry in zip(range(MAX_ENTRIES), os.scandir(folder), strict=False)]
    except OSError as error:
        return f"{folder} cannot be read ({_reason(error)})."
    for name in sorted(names):
        path = folder / name
        if path.suffix not in suffixes or path.is_dir():
            continue
        try:
            with open_regular(path, root) as descriptor:
                if os.fstat(descriptor).st_size > MAX_TEXT_BYTES:
                    return f"{path} cannot be used: it has more than {MAX_TEXT_BYTES} bytes."
        except FileRefused as error:
            return f"{path} cannot be used: {error}."
    return None


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:  # one may be a sign
        raise ValueError(f"a number has {len(digits)} digits, and at most {MAX_DIGITS} are read")
    return int(digits)


def _open(path: Path, root: Path | None) -> int:
    try:
        real = path.resolve(strict=True)
        root = root_of(path.parent) if root is None else root
        _check_inside(real, root)
        descriptor = os.open(real, _FLAGS)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a cycle of links; ValueError: a NUL
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        raise FileRefused(f"it cannot be read ({_reason(error)})", missing=missing) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileRefused("it is not a regular file")
        with suppress(OSError):  # a link may have been created meanwhile: check again where /proc exists
            _check_inside(Path(os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")), root)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_inside(real: Path, root: Path) -> None:
    if not real.is_relative_to(root):
        raise FileRefused("it is a link that leads out of its folder")


def _reason(error: BaseException) -> str:
    """The reason without paths, which the system's messages may contain."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, MemoryError):
        return "it is too large"
    return "a cycle of links" if isinstance(error, RuntimeError) else "an impossible name"

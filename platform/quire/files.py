"""Files of others: adapters, models, tokenizers. Opened, read and parsed under bounds, since they may be hostile.

A file is read if it is a regular one that lies, links followed, in the folder it belongs to. The cache of the Hugging
Face hub keeps a model's files in `blobs` and links to them from `snapshots/REVISION`: there the repository's folder
counts. Nothing here blocks on a pipe or a device, and no number or depth of a JSON text is too much for it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

MAX_JSON_BYTES = 16 << 20
"""Of a JSON file that holds settings."""

MAX_TEXT_BYTES = 1 << 30
"""Of a file that a library reads whole: vocabularies, merges, chat templates."""

MAX_DIGITS = 64
"""Of an integer in JSON. Tokenizers are saved with lengths of 31 digits; no size, count or offset has more than 19."""

MAX_ENTRIES = 10_000
"""Of a folder that is looked through."""

MAX_DEPTH = 4
"""Folders from one in a hub's snapshot up to that snapshot."""

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class FileRefused(Exception):
    """A file may not be read, or cannot; the text is a clause without the file's name: "it is no regular file".

    missing: there is no such file.
    """

    def __init__(self, reason: str, *, missing: bool = False) -> None:
        super().__init__(reason)
        self.missing = missing


def home_of(folder: Path) -> Path:
    """The folder that links in `folder` may not leave: itself, or the repository in a hub's cache that it is of."""
    real = folder.resolve()
    for snapshot in (real, *real.parents)[:MAX_DEPTH]:
        if snapshot.parent.name == "snapshots" and (snapshot.parent.parent / "blobs").is_dir():
            return snapshot.parent.parent
    return real


@contextmanager
def opened(path: Path, home: Path | None = None) -> Iterator[int]:
    """A descriptor of a regular file in `home` (default: that of the path's folder). Raises FileRefused."""
    descriptor = _open(path, home)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def check(path: Path, home: Path | None = None) -> None:
    """Raise FileRefused unless `path` is a regular file in `home`."""
    os.close(_open(path, home))


def read_bytes(path: Path, max_bytes: int, home: Path | None = None) -> bytes:
    """The content of a regular file in `home` with at most `max_bytes`. Raises FileRefused."""
    with opened(path, home) as descriptor:
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


def read_text(path: Path, max_bytes: int = MAX_JSON_BYTES, home: Path | None = None) -> str:
    """The same, decoded as UTF-8."""
    try:
        return read_bytes(path, max_bytes, home).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileRefused(f"it is no UTF-8 ({error})") from error


def read_json(path: Path, max_bytes: int = MAX_JSON_BYTES, home: Path | None = None) -> Any:
    """What a JSON file holds. Raises FileRefused."""
    return parse_json(read_bytes(path, max_bytes, home))


def parse_json(text: bytes | str) -> Any:
    """What a JSON text holds. Raises FileRefused for what is none, is nested too deeply or has too long numbers."""
    try:
        return json.loads(text, parse_int=_integer)
    except RecursionError:
        raise FileRefused("it is nested too deeply") from None
    except MemoryError:
        raise FileRefused("it needs too much memory") from None
    except ValueError as error:  # not JSON, or not Unicode
        raise FileRefused(f"it is not valid JSON: {error}") from error


def check_folder(folder: Path, suffixes: frozenset[str]) -> str | None:
    """Look at the files of a folder that libraries will open by themselves, those whose names end so.

    What is wrong with one of them, or None: it is no regular file, leads out of the folder, or is unreasonably large.
    """
    home = home_of(folder)
    try:
        names = [entry.name for _, entry in zip(range(MAX_ENTRIES), os.scandir(folder), strict=False)]
    except OSError as error:
        return f"{folder} cannot be read ({_reason(error)})."
    for name in sorted(names):
        path = folder / name
        if path.suffix not in suffixes or path.is_dir():
            continue
        try:
            with opened(path, home) as descriptor:
                if os.fstat(descriptor).st_size > MAX_TEXT_BYTES:
                    return f"{path} cannot be used: it has more than {MAX_TEXT_BYTES} bytes."
        except FileRefused as error:
            return f"{path} cannot be used: {error}."
    return None


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS + 1:  # a sign may be one of them
        raise ValueError(f"a number has {len(digits)} digits, and at most {MAX_DIGITS} are read")
    return int(digits)


def _open(path: Path, home: Path | None) -> int:
    try:
        real = path.resolve(strict=True)
        home = home_of(path.parent) if home is None else home
        _check_inside(real, home)
        descriptor = os.open(real, _FLAGS)
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: links in a circle; ValueError: a NUL
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        raise FileRefused(f"it cannot be read ({_reason(error)})", missing=missing) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileRefused("it is no regular file")
        with suppress(OSError):  # where the system says what was opened: a link may have been put there meanwhile
            _check_inside(Path(os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")), home)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_inside(real: Path, home: Path) -> None:
    if not real.is_relative_to(home):
        raise FileRefused("it is a link that leads out of its folder")


def _reason(error: BaseException) -> str:
    """Without the paths that the system's own texts may have."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, MemoryError):
        return "it is too large"
    return "links in a circle" if isinstance(error, RuntimeError) else "a name that cannot be"

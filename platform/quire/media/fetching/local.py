"""Reads media without a network: from data: URLs, base64 and files. All functions block."""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from quire.errors import BadRequest, Unprocessable
from quire.media.limits import Budget

BLOCK_CHARS = 1 << 16
"""Characters of a data: URL that are decoded at once: other threads wait meanwhile."""


def read_data_url(url: str, budget: Budget) -> bytes:
    """The bytes of a URL data:[type][;base64],… Raises `BadRequest` if it is malformed, and TooLarge."""
    head, comma, body = url.partition(",")
    if not comma:
        raise BadRequest("The data: URL has no comma before its data.")
    if head.rstrip().lower().endswith(";base64"):
        return read_base64(body, budget)
    parts = []
    for block in _blocks(body):
        parts.append(unquote_to_bytes(block))
        budget.consume(len(parts[-1]))
    return b"".join(parts)


def read_base64(text: str, budget: Budget) -> bytes:
    """Decode base64. Missing padding and percent-encoding are accepted; other errors raise `BadRequest`.

    Raises TooLarge.
    """
    parts, rest = [], ""
    for block in _blocks(text):
        rest += "".join((unquote(block) if "%" in block else block).split())
        num_whole = max(len(rest) - 1, 0) // 4 * 4  # the end, which may be padded, is left
        parts.append(_decoded(rest[:num_whole], is_end=False))
        rest = rest[num_whole:]
        budget.consume(len(parts[-1]))
    parts.append(_decoded(rest + "=" * (-len(rest) % 4), is_end=True))
    budget.consume(len(parts[-1]))
    return b"".join(parts)


def _decoded(text: str, is_end: bool) -> bytes:
    try:
        if "=" in text and not is_end:
            raise ValueError("there is padding before its end")
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest(f"The base64 of the medium is broken: {error}.") from error


def _blocks(text: str) -> Iterator[str]:
    """Blocks of a text, which do not divide an escape such as %20."""
    begin = 0
    while begin < len(text):
        end = begin + BLOCK_CHARS
        if (escape := text.rfind("%", end - 2, end)) >= 0:
            end = escape + 3
        yield text[begin:end]
        begin = end


def read_file_url(url: str, folder: Path | None, budget: Budget) -> bytes:
    """The bytes of the file of a URL file:///…, which must be under `folder` after links are followed.

    Raises `BadRequest` for other files, Unprocessable for a file that cannot be read, and TooLarge.
    """
    if folder is None:
        raise BadRequest(
            "file: URLs are not allowed; the server's --allowed-local-media-path sets the folder of such files."
        )
    try:
        parts = urlsplit(url)
        path = Path(unquote(parts.path)).resolve()
    except (OSError, ValueError, RuntimeError) as error:  # invalid IPv6 address, null byte, circular links
        raise BadRequest("The file: URL has no valid path.") from error
    if parts.netloc not in ("", "localhost"):
        raise BadRequest(f"A file: URL has a path but no host: file:///…; got {parts.netloc!r:.80}.")
    if not path.is_relative_to(folder):
        raise BadRequest("The file of the file: URL is not under the server's --allowed-local-media-path.")
    return read_file(path, budget)


def read_path(path: str | os.PathLike[str], budget: Budget) -> bytes:
    """The bytes of a file that Python code names; links and ~ are followed. Raises Unprocessable or TooLarge."""
    try:
        found = Path(path).expanduser().resolve(strict=True)
    except (OSError, ValueError, RuntimeError) as error:  # missing file, null byte, circular links, unknown user of ~
        reason = _reason(error).rstrip(".")
        raise Unprocessable(f"The medium's path {os.fspath(path)!r:.120} leads nowhere: {reason}.") from error
    return read_file(found, budget)


def read_file(path: Path, budget: Budget) -> bytes:
    """The bytes of a regular file that is not a link. Raises Unprocessable or TooLarge."""
    try:
        data = _read(path, budget.remaining + 1)
    except (OSError, ValueError) as error:
        raise Unprocessable(f"The medium's file cannot be read: {_reason(error)}.") from error
    budget.consume(len(data))
    return data


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _read(path: Path, max_bytes: int) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Unprocessable("The medium's path is not that of a file.")
        with open(handle, "rb", closefd=False) as file:  # the `finally` closes it even if `open` fails
            return file.read(max_bytes)
    finally:
        os.close(handle)

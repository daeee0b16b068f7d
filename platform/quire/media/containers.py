"""Opens video and audio files with PyAV: from memory only, and only formats that contain their own data.

Playlists and other formats that refer to files or URLs are not opened.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from quire.errors import BadRequest, QuireError, Unprocessable

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,ogg,wav,flac,mp3,aac,gif,asf"
"""Names of the libavformat demuxers that may be used."""


@contextlib.contextmanager
def open_container(data: bytes, what: str, extra: str) -> Iterator[Any]:
    """A PyAV container (`av.container.InputContainer`) of the bytes.

    what: "video" or "audio", for errors. extra: key of `PACKAGES` for the error if PyAV is not installed. Raises
    `BadRequest` in that case, and Unprocessable for errors of PyAV inside the `with` block.
    """
    if not data:
        raise Unprocessable(f"The {what} is empty: it has no bytes.")
    try:
        import av
    except ImportError as error:
        raise not_installed(what, extra) from error
    try:
        options = {"format_whitelist": FORMATS, "protocol_whitelist": "none"}
        with av.open(io.BytesIO(data), mode="r", container_options=options, io_open=_refuse) as container:
            yield container
    except QuireError:
        raise
    except (av.FFmpegError, OSError, ValueError, ArithmeticError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, av.FFmpegError | OSError) else None
        raise Unprocessable(f"The {what} cannot be read: {(reason or str(error))[:200].rstrip('.')}.") from error


PACKAGES = {"audio": "soundfile", "video": "av"}
"""The package to install for each extra."""


def not_installed(what: str, extra: str) -> BadRequest:
    """The error for media whose libraries are not installed."""
    exception = ", except plain WAV files" if what == "audio" else ""
    return BadRequest(f"This server cannot read {what}{exception}: it needs `pip install {PACKAGES[extra]}`.")


def _refuse(*_: Any) -> NoReturn:
    raise PermissionError("it refers to another file")


class DecodingDeadline:
    """The deadline for decoding one item. now: a clock in seconds."""

    def __init__(self, what: str, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._what, self._timeout_s, self._now = what, timeout_s, now
        self._end = now() + timeout_s

    def check(self) -> None:
        """Raise Unprocessable after the deadline."""
        if self._now() > self._end:
            raise Unprocessable(
                f"Decoding the {self._what} took longer than {self._timeout_s:g} seconds (--media-timeout-s)."
            )

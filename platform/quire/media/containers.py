"""Files of video and audio as PyAV reads them: only from memory, only formats that hold their own content.

Playlists and the like, which make a reader open other files and addresses, are not opened.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from quire.errors import BadRequest, QuireError, Unprocessable

FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,flv,mpegts,mpeg,ogg,wav,flac,mp3,aac,gif,asf"
"""Names of libavformat's readers that may be used."""


@contextlib.contextmanager
def opened(data: bytes, what: str, extra: str) -> Iterator[Any]:
    """A container of PyAV (`av.container.InputContainer`) over the bytes.

    what: "video" or "audio", for errors; extra: what to install if PyAV is not there. Raises `BadRequest` for that, and
    Unprocessable for what PyAV raises inside the block.
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
"""What to install, by extra."""


def not_installed(what: str, extra: str) -> BadRequest:
    """The error for media that need libraries which are not there."""
    also = ", except plain WAV files" if what == "audio" else ""
    return BadRequest(f"This server cannot read {what}{also}: it needs `pip install {PACKAGES[extra]}`.")


def _refuse(*_: Any) -> NoReturn:
    raise PermissionError("it refers to another file")


class Deadline:
    """When decoding one item must be over. now: a clock of seconds."""

    def __init__(self, what: str, timeout_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._what, self._timeout_s, self._now = what, timeout_s, now
        self._end = now() + timeout_s

    def check(self) -> None:
        """Raises Unprocessable when it is past."""
        if self._now() > self._end:
            raise Unprocessable(
                f"Decoding the {self._what} took longer than {self._timeout_s:g} seconds (--media-timeout-s)."
            )

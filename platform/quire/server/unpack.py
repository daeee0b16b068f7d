"""Bodies that were sent compressed: gzip and deflate, unpacked under a bound on what comes out."""

from __future__ import annotations

import zlib

from quire.errors import QuireError, TooLarge
from quire.server.errors import Malformed

PIECE = 256 << 10
_WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}


class UnsupportedEncoding(QuireError):
    """The body is compressed in a way that is not known here."""

    status = 415
    type = "UnsupportedMediaTypeError"


def check_encoding(encoding: str) -> str:
    """The one encoding of a body, "" for none; `UnsupportedEncoding` for what can't be unpacked."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return ""
    if name not in _WINDOWS:
        raise UnsupportedEncoding(
            f"A body may be sent plain or with one of the content encodings gzip and deflate, not {name!r:.40}."
        )
    return name


def unpacked(data: bytes, encoding: str, max_bytes: int) -> bytes:
    """What was packed; `TooLarge` as soon as it is more than `max_bytes`, `Malformed` if it is damaged."""
    unpack = zlib.decompressobj(_WINDOWS[encoding])
    pieces: list[bytes] = []
    size = 0
    try:
        while not unpack.eof:
            piece = unpack.decompress(data, PIECE)
            data = unpack.unconsumed_tail
            if not piece and not data:
                break
            size += len(piece)
            if size > max_bytes:
                raise TooLarge(f"The request body may have at most {max_bytes} bytes, unpacked.")
            pieces.append(piece)
    except zlib.error as error:
        raise Malformed(f"The body is not valid {encoding}: {error}") from None
    if not unpack.eof or unpack.unused_data:
        raise Malformed(f"The body is not valid {encoding}: it ends too early, or more follows it.")
    return b"".join(pieces)

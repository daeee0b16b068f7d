"""The blob of a page: what the page holds, with a header and a checksum. Whatever is not intact counts as missing."""

from __future__ import annotations

import struct
from hashlib import sha256
from typing import NamedTuple

MAGIC = b"QUIREKV1"
_HEADER = struct.Struct("<8s32sdQ")  # magic, key, time of expiry or 0, bytes of the payload
_CHECKSUM_BYTES = 32
OVERHEAD = _HEADER.size + _CHECKSUM_BYTES
"""Bytes of a blob beside its payload."""


class StoredPage(NamedTuple):
    """expires: seconds since 1970, None = never."""

    payload: bytes | memoryview
    expires: float | None = None


class BadBlob(Exception):
    """A blob is damaged, expired, or of another key."""


def encode(key: str, page: StoredPage) -> bytes:
    """A blob. key: at most 32 bytes of ASCII."""
    header = _HEADER.pack(MAGIC, key.encode("ascii"), page.expires or 0.0, len(page.payload))
    return b"".join((header, _checksum(header, page.payload), page.payload))


def decode(key: str, blob: bytes, now: float) -> StoredPage:
    """The page. Raises BadBlob. now: seconds since 1970."""
    if len(blob) < OVERHEAD:
        raise BadBlob("it is truncated")
    view = memoryview(blob)
    header, payload = view[: _HEADER.size], view[OVERHEAD:]
    magic, name, expires, size = _HEADER.unpack(header)
    if magic != MAGIC or name.rstrip(b"\0") != key.encode("ascii") or size != len(payload):
        raise BadBlob("it is not the blob of this key")
    if view[_HEADER.size : OVERHEAD] != _checksum(header, payload):
        raise BadBlob("its checksum is wrong")
    if expires and expires <= now:
        raise BadBlob("it has expired")
    return StoredPage(payload, expires or None)


def _checksum(header: bytes | memoryview, payload: bytes | memoryview) -> bytes:
    hasher = sha256(header)
    hasher.update(payload)
    return hasher.digest()

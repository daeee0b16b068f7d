"""The ids of requests: a client's `X-Request-Id`, or a random one."""

from __future__ import annotations

import uuid

from starlette.datastructures import Headers

REQUEST_ID_HEADER = "x-request-id"
MAX_ID_LENGTH = 256


def random_id() -> str:
    """A random id of 32 hexadecimal digits."""
    return uuid.uuid4().hex


def header_id(headers: Headers) -> str | None:
    """The client's `X-Request-Id`, cut to `MAX_ID_LENGTH` and to printable characters; None if it sent none."""
    name = "".join(filter(str.isprintable, headers.get(REQUEST_ID_HEADER, "")[:MAX_ID_LENGTH]))
    return name.strip() or None

"""What routes of plugins get from other routes, and from uploads."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """The response of another route. headers: by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class PostJson(Protocol):
    """`CallRoute` for JSON texts, which are passed on as they are."""

    def __call__(self, path: str, body: bytes, client: str) -> Awaitable[RouteAnswer]:
        """The response to `POST path`. A body that asks for a stream gets its events as one body."""
        ...


@dataclass(frozen=True, slots=True)
class Upload:
    """A multipart form with at most one file. fields: its other fields, for each name the last value.

    file: the content at its beginning, in memory or in a temporary file, which is removed when the request ends; None:
    the form has none. filename: as the client gave it.
    """

    fields: Mapping[str, str]
    file: BinaryIO | None
    filename: str
    num_bytes: int


class ReadUpload(Protocol):
    """Reads a multipart form with a file that may be larger than `--max-body-bytes`."""

    def __call__(self, request: HttpRequest, field: str, max_bytes: int) -> AbstractAsyncContextManager[Upload]:
        """The form, while the context lasts. field: name of the field of the file. max_bytes: of the whole form.

        The path must be one of `Router.upload_paths`. Raises errors of `quire.errors`.
        """
        ...

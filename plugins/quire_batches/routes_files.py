"""`/v1/files`: uploads, and the answers of batches."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import FileResponse, Response

from quire.errors import BadRequest
from quire.plugin import RouterContext, Upload
from quire_batches import UPLOAD_PATH
from quire_batches.records import StoredFile, page
from quire_batches.service import BatchService

PURPOSES = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
FORM_BYTES = 1 << 20
"""Bytes of a form beside those of its file."""

BLOCK_BYTES = 1 << 20
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 86_400
MAX_NAME_CHARS = 255

_UPLOAD = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"type": "string", "enum": list(PURPOSES)},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {"type": "integer", "minimum": MIN_EXPIRY_S, "maximum": MAX_EXPIRY_S},
    },
}
_STATUSES = {
    400: "The request is malformed, or asks for something that is not allowed.",
    401: "The API key is missing or wrong.",
    403: "A request gate refused.",
    404: "There is no such file or batch.",
    413: "The body is larger than the server accepts.",
    415: "The body is compressed in a way that the server does not know.",
    429: "A request gate refused for now.",
    500: "The server or a plugin failed.",
    503: "A bound was reached, or another server uses the folder; try again later.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": text, "content": {"application/json": {}}} for status, text in _STATUSES.items()
}
"""`responses=` of all these routes."""

_CONTENT: dict[int | str, dict[str, Any]] = {
    200: {"description": "The bytes of the file.", "content": {"application/octet-stream": {}}}
}
_UPLOAD_BODY = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _UPLOAD}}}}


def build(context: RouterContext, service: BatchService) -> APIRouter:
    router = APIRouter(tags=["Files"], responses=ERRORS)
    owner = partial(owner_of, context)

    @router.post(UPLOAD_PATH, openapi_extra=_UPLOAD_BODY)
    async def create(request: Request) -> Response:
        """Upload a file of up to `--batches.max_file_bytes`."""
        announced = request.headers.get("content-length", "")
        limit = service.limits.max_file_bytes
        await service.open(create=True)
        num_bytes = min(int(announced), limit) if announced.isdecimal() else limit
        async with service.room_for(num_bytes), context.upload(request, "file", limit + FORM_BYTES) as upload:
            return answer((await _store(service, owner(request), upload)).public())

    @router.get(UPLOAD_PATH)
    async def list_files(
        request: Request,
        purpose: str | None = None,
        limit: int = Query(10_000, ge=1, le=10_000),
        order: str = Query("desc", pattern="^(asc|desc)$"),
        after: str | None = None,
    ) -> Response:
        """The files of the client, a page at a time."""
        of, ascending = owner(request), order == "asc"

        def read() -> tuple[list[StoredFile], bool]:
            every = service.store.files.of(of, after, ascending)
            return first([file for file in every if purpose in (None, file.purpose)], limit)

        return answer(page(*(await service.call(read) if await service.open() else ([], False))))

    @router.get(UPLOAD_PATH + "/{file_id}")
    async def retrieve(request: Request, file_id: str) -> Response:
        """What is known of a file."""
        return answer((await service.file(owner(request), file_id)).public())

    @router.get(UPLOAD_PATH + "/{file_id}/content", response_class=Response, responses=_CONTENT)
    async def content(request: Request, file_id: str) -> Response:
        """The content of a file."""
        file = await service.file(owner(request), file_id)
        return FileResponse(service.folder.path(file.id), media_type="application/octet-stream")

    @router.delete(UPLOAD_PATH + "/{file_id}")
    async def delete(request: Request, file_id: str) -> Response:
        """Remove a file that no unfinished batch reads."""
        file = await service.file(owner(request), file_id)
        if not await service.call(lambda: service.remove_file(file)):
            raise BadRequest("A batch that has not ended reads this file.", "file_id")
        return answer({"id": file.id, "object": "file", "deleted": True})

    return router


def owner_of(context: RouterContext, request: Request) -> str:
    """The client that files and batches belong to: its tenant or the digest of its API key; empty if the server needs
    no keys."""
    client = context.client_of(request)
    return "" if client.startswith("address:") else client


def answer(content: Any) -> Response:
    return Response(msgspec.json.encode(content), media_type="application/json")


def first(rows: list[Any], limit: int) -> tuple[list[Any], bool]:
    """The first rows, and whether there are more."""
    return rows[:limit], len(rows) > limit


async def _store(service: BatchService, owner: str, upload: Upload) -> StoredFile:
    purpose, file = upload.fields.get("purpose", ""), upload.file
    if file is None:
        raise BadRequest("The form has no file in the field `file`.", "file")
    if purpose not in PURPOSES:
        raise BadRequest(f"`purpose` must be one of {', '.join(PURPOSES)}; got {purpose!r:.80}.", "purpose")
    if upload.num_bytes > service.limits.max_file_bytes:
        raise BadRequest(f"A file may have at most {service.limits.max_file_bytes} bytes.", "file")
    name = "".join(filter(str.isprintable, upload.filename))[:MAX_NAME_CHARS]
    expires_s = _lifetime(upload)
    file_id = service.new_id("file-")
    size = await asyncio.to_thread(service.folder.write, file_id, iter(lambda: file.read(BLOCK_BYTES), b""))
    stored = service.new_file(owner, purpose, name or "file", file_id, size, expires_s)
    await service.call(lambda: service.store.files.add(stored))
    return stored


def _lifetime(upload: Upload) -> int | None:
    given = upload.fields.get("expires_after[seconds]")
    if upload.fields.get("expires_after[anchor]", "created_at") != "created_at":
        raise BadRequest("`expires_after[anchor]` must be created_at.", "expires_after")
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 9 and MIN_EXPIRY_S <= int(given) <= MAX_EXPIRY_S):
        raise BadRequest(f"`expires_after[seconds]` must be from {MIN_EXPIRY_S} to {MAX_EXPIRY_S}.", "expires_after")
    return int(given)

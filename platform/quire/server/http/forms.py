"""Reads a multipart form: fields and one file.

`BodyLimitMiddleware` limits the size of a `Form`; an `Upload` has a limit of its own and is not held in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.types import Message

from quire.errors import TooLarge
from quire.records import Upload
from quire.server.http.errors import MalformedBody

MAX_FIELDS = 128
MAX_FIELD_BYTES = 1 << 20
MAX_FILES = 1


@dataclass(frozen=True, kw_only=True)
class Form:
    """A parsed form, without empty fields.

    fields: for each name its last value; the values of `name[]` are a list under `name`. files: contents by field.
    """

    fields: dict[str, Any]
    files: dict[str, bytes]


async def read_form(request: Request) -> Form:
    """The body as a form. Raises `MalformedBody` if it is not a form or has too many fields."""
    fields: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    parsed = await _parsed(request)
    try:
        for name, value in parsed.multi_items():
            if isinstance(value, UploadFile):
                files[name] = await value.read()
            elif name.endswith("[]"):
                fields.setdefault(name.removesuffix("[]"), []).append(value)
            elif value:
                fields[name] = value
    finally:
        await parsed.close()
    return Form(fields=fields, files=files)


async def _parsed(request: Request) -> FormData:
    media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media_type != "multipart/form-data":
        raise MalformedBody("Unsupported Media Type: Only 'multipart/form-data' is allowed")
    try:
        return await request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except HTTPException as error:
        raise MalformedBody(f"The body is not a valid form: {error.detail}") from None


@asynccontextmanager
async def read_upload(request: Request, field: str, max_bytes: int) -> AsyncIterator[Upload]:
    """The body as a form with a file in `field`. Raises `MalformedBody` or `TooLarge`."""
    num_left = max_bytes

    async def receive() -> Message:
        nonlocal num_left
        message = await request.receive()
        num_left -= len(message.get("body", b""))
        if num_left < 0:
            raise TooLarge(f"The request body may have at most {max_bytes} bytes.")
        return message

    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise TooLarge(f"The request body may have at most {max_bytes} bytes.")
    parsed = await _parsed(Request(request.scope, receive))
    try:
        items = parsed.multi_items()
        file = next((value for name, value in items if name == field and isinstance(value, UploadFile)), None)
        fields = {name: value for name, value in items if isinstance(value, str)}
        if file is None:
            yield Upload(fields, None, "", 0)
        else:
            yield Upload(fields, file.file, file.filename or "", file.size or 0)
    finally:
        await parsed.close()


def form_body(model: type[BaseModel], file: str) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a form with the fields of `model` and a file in the field `file`."""
    fields = {"$ref": f"#/components/schemas/{model.__name__}"}
    upload = {"type": "object", "required": [file], "properties": {file: {"type": "string", "format": "binary"}}}
    schema = {"allOf": [fields, upload]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}

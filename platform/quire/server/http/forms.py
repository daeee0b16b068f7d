"""Reads a multipart form: fields and one file. `BodyLimitMiddleware` limits its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

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
    media_type = request.headers.get("content-type", "").split(";", 1)[0].strip().lower()
    if media_type != "multipart/form-data":
        raise MalformedBody("Unsupported Media Type: Only 'multipart/form-data' is allowed")
    fields: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    try:
        parsed = await request.form(max_files=MAX_FILES, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    except HTTPException as error:
        raise MalformedBody(f"The body is not a valid form: {error.detail}") from None
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


def form_body(model: type[BaseModel], file: str) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a form with the fields of `model` and a file in the field `file`."""
    fields = {"$ref": f"#/components/schemas/{model.__name__}"}
    upload = {"type": "object", "required": [file], "properties": {file: {"type": "string", "format": "binary"}}}
    schema = {"allOf": [fields, upload]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}

"""Makes the OpenAPI document of the application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from quire.server.http.body import with_bodies


def install_openapi(app: FastAPI, bodies: Sequence[type[BaseModel]]) -> None:
    """Have `app.openapi()` make the document once. bodies: schemas of requests that routes read themselves."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, routes=app.routes, servers=app.servers or None)
            app.openapi_schema = _without_422(with_bodies(schema, bodies))
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _without_422(schema: dict[str, Any]) -> dict[str, Any]:
    """Removes FastAPI's validation errors from the document: this server answers 400 with an error object instead."""
    for operations in schema.get("paths", {}).values():
        for operation in operations.values():
            documented = operation.get("responses", {}).get("422", {})
            if "HTTPValidationError" in str(documented):
                del operation["responses"]["422"]
    return schema

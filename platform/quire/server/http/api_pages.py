"""Serves `/openapi.json`, and `/docs` and `/redoc` without access to the internet.

With the extra `docs`, these are Swagger UI and ReDoc, from the files of the package fastapi-offline; without it, a
plain page that lists the routes.
"""

from __future__ import annotations

import asyncio
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_redoc_html, get_swagger_ui_html
from fastapi.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

SCRIPTS = ("swagger-ui-bundle.js", "swagger-ui.css", "redoc.standalone.js")
ASSETS, SCHEMA = "/docs-assets", "/openapi.json"
PAGES = ("/docs", "/redoc", ASSETS, SCHEMA)
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "td{padding:.2rem 1rem .2rem 0;vertical-align:top}code{font-size:.95em}"
)


def installed_assets() -> Path | None:
    """The folder with Swagger UI and ReDoc, None if fastapi-offline is not installed. The package is not imported."""
    spec = find_spec("fastapi_offline")
    folder = Path(spec.origin).parent / "static" if spec is not None and spec.origin else None
    return folder if folder is not None and all((folder / name).is_file() for name in SCRIPTS) else None


def add_api_pages(app: FastAPI, assets: Path | None) -> None:
    """Add the pages. assets: the folder with Swagger UI and ReDoc; None: plain pages."""
    if assets is not None:
        app.mount(ASSETS, StaticFiles(directory=assets))
    lock = asyncio.Lock()

    async def document() -> dict[str, Any]:
        async with lock:  # the first call takes 0.3 s, in which the event loop goes on
            return await asyncio.to_thread(app.openapi)

    async def schema(_: Request) -> Response:
        return Response(msgspec.json.encode(await document()), media_type="application/json")

    async def page(request: Request) -> HTMLResponse:
        root = str(request.scope.get("root_path", "")).rstrip("/")
        url, files = f"{root}{SCHEMA}", f"{root}{ASSETS}"
        if assets is None:
            return HTMLResponse(plain_page(await document(), url))
        if request.url.path.endswith("/redoc"):
            script = f"{files}/redoc.standalone.js"
            return get_redoc_html(
                openapi_url=url, title=app.title, redoc_js_url=script, redoc_favicon_url="", with_google_fonts=False
            )
        return get_swagger_ui_html(
            openapi_url=url,
            title=app.title,
            swagger_js_url=f"{files}/swagger-ui-bundle.js",
            swagger_css_url=f"{files}/swagger-ui.css",
            swagger_favicon_url="",
        )

    app.add_api_route(SCHEMA, schema, include_in_schema=False)
    app.add_api_route("/docs", page, include_in_schema=False)
    app.add_api_route("/redoc", page, include_in_schema=False)


def plain_page(schema: dict[str, Any], schema_url: str) -> str:
    """The routes of an OpenAPI document as one HTML page, without scripts."""
    rows = [
        f"<tr><td><code>{method.upper()}</code><td><code>{escape(path)}</code>"
        f"<td>{escape(operation.get('description') or operation.get('summary') or '')}"
        for path, operations in sorted(schema["paths"].items())
        for method, operation in operations.items()
    ]
    title = f"{schema['info']['title']} {schema['info']['version']}"
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
        f'<h1>{escape(title)}</h1><p>Fields and answers of each route are in <a href="{escape(schema_url)}">'
        f"<code>{escape(schema_url)}</code></a>. With the package <code>fastapi-offline</code> beside the server, this "
        f"page lets you try them.</p><table>{''.join(rows)}</table></html>"
    )

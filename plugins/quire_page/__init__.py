"""The web page at `/`: a playground, adapters and models, a live view, and plugins. `--no-ui` switches it off.

The page is static files (`quire_page/static`) that use the server's public routes, and one route that describes models.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from quire.plugin import Router, RouterContext, hookimpl
from quire_page.files import INDEX, NAMES

if TYPE_CHECKING:
    from fastapi import APIRouter


@hookimpl
def quire_routers() -> Iterable[Router]:
    yield Router(
        "page",
        _build,
        open_paths=(INDEX, *(f"/ui/{name}" for name in NAMES)),
        ui=True,
        scopes={"/": "read", "/ui": "read"},
    )


def _build(context: RouterContext) -> APIRouter:
    from quire_page.routes import build_router

    return build_router(context)

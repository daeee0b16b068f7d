"""OpenAI's files and batches: uploads, and files of requests that are answered behind all other requests.

`routes_files` and `routes_batches` are the HTTP routes. `service` owns the folder and the state; `runner` takes each
batch from `validating` to its end; `store` is the journal, a SQLite database; `lines` reads and checks input files;
`records` has the state of a file and of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from quire.plugin import Option, Router, RouterContext, hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter
    from pydantic import BaseModel

UPLOAD_PATH = "/v1/files"
SCOPES = {UPLOAD_PATH: "batches", "/v1/batches": "batches"}


@hookimpl
def quire_options() -> Iterable[Option]:
    """Where files are kept, how many, how large and how long; how many requests of batches run at once."""
    yield Option("folder", str, "", "folder for files and batches (default: ~/.cache/quire/batches)")
    yield Option("max_file_bytes", int, 200 << 20, "maximum size of a file that clients upload")
    yield Option("max_total_bytes", int, 10 << 30, "maximum size of all files and unfinished results")
    yield Option("max_files", int, 10_000, "maximum number of files")
    yield Option("max_lines", int, 50_000, "maximum number of requests of a batch")
    yield Option("max_batches", int, 100, "maximum number of batches that have not ended")
    yield Option(
        "retention_days",
        int,
        30,
        "days after which ended batches, and files without an expiry of their own, are removed",
    )
    yield Option("concurrency", int, 64, "maximum number of requests of all batches at a time")


def build_router(context: RouterContext) -> APIRouter:
    """The routes, and the lifespan that continues unfinished batches."""
    from fastapi import APIRouter

    from quire_batches import routes_batches, routes_files
    from quire_batches.service import BatchLimits, BatchService

    service = BatchService(context, BatchLimits.from_options(context.options))
    router = APIRouter(lifespan=service.lifespan)
    router.include_router(routes_files.build(context, service))
    router.include_router(routes_batches.build(context, service))
    return router


def body_models() -> Sequence[type[BaseModel]]:
    """The model of the body of `POST /v1/batches`."""
    from quire_batches.routes_batches import BatchRequest

    return [BatchRequest]


@hookimpl
def quire_routers() -> Iterable[Router]:
    """The routes `/v1/files` and `/v1/batches`."""
    yield Router("batches", build_router, bodies=body_models, upload_paths=[UPLOAD_PATH], scopes=SCOPES)

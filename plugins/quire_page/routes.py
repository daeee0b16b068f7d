"""The routes of the page: `/`, `/ui/…` for its files, and `/ui/models`, which describes what each model can do."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel
from starlette.responses import Response

from quire.plugin import ModelInfo, RouterContext
from quire_page.files import INDEX, PageFile, read_files

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
"""Headers of each file. A browser keeps the files, and asks with the ETag whether they have changed."""


class PageModel(BaseModel):
    """What the page shows of a model, and which of its views the model is for."""

    id: str
    aliases: list[str]
    architecture: str
    dtype: str
    device: str
    num_parameters: int
    max_model_len: int
    num_pages: int
    page_size: int
    tasks: list[str]
    modalities: list[str]
    embedding_size: int | None
    max_logprobs: int


class PageModels(BaseModel):
    """The served models, in the order of the server."""

    object: str = "list"
    data: list[PageModel]


def build_router(context: RouterContext) -> APIRouter:
    """The routes of the page. Raises OSError if one of its files is not installed."""
    files = read_files()
    router = APIRouter(tags=["Page"])

    @router.get(INDEX, include_in_schema=False)
    async def index(request: Request) -> Response:
        return _answer(files["index.html"], request)

    @router.get(
        "/ui/models",
        summary="What each model can do, for the page",
        responses={401: {"description": "The request has no known API key."}},
    )
    async def models() -> PageModels:
        return PageModels(data=[_row(info) for info in context.models()])

    @router.get("/ui/{name:path}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404, f"The page has no file {name:.100}.")
        return _answer(files[name], request)

    return router


def _answer(file: PageFile, request: Request) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    known = request.headers.get("if-none-match", "")
    if known == "*" or file.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _row(info: ModelInfo) -> PageModel:
    return PageModel(
        id=info.aliases[0] if info.aliases else info.name,
        aliases=list(info.aliases or (info.name,)),
        architecture=info.architecture,
        dtype=info.dtype,
        device=info.device,
        num_parameters=info.num_parameters,
        max_model_len=info.max_model_len,
        num_pages=info.num_pages,
        page_size=info.page_size,
        tasks=list(info.tasks),
        modalities=list(info.modalities),
        embedding_size=info.embedding_size,
        max_logprobs=info.max_logprobs,
    )

"""The routes of the page: `/`, `/ui/…` for files, `/ui/models` (what models can do), `/ui/states`, `/ui/clients`."""

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


class PageClient(BaseModel):
    """What one client has used: the requests that ended, and their tokens."""

    client: str
    is_me: bool
    num_requests: int
    num_prompt_tokens: int
    num_generated_tokens: int


class PageClients(BaseModel):
    """The clients that the sender of the request may see, the latest first."""

    object: str = "list"
    data: list[PageClient]


class PageState(BaseModel):
    """A model, loaded or not: unloaded, loading, ready, sleeping, draining or failed."""

    id: str
    state: str


class PageStates(BaseModel):
    """All models that the sender of the request may use."""

    object: str = "list"
    data: list[PageState]


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

    @router.get(
        "/ui/states",
        summary="The states of all models, for the page",
        responses={401: {"description": "The request has no known API key."}},
    )
    async def states() -> PageStates:
        found = context.model_control.states().items()
        return PageStates(data=[PageState(id=name, state=state) for name, state in found])

    @router.get(
        "/ui/clients",
        summary="What each client has used, for the page",
        responses={401: {"description": "The request has no known API key."}},
    )
    async def clients(request: Request) -> PageClients:
        own = context.client_of(request)
        return PageClients(
            data=[
                PageClient(
                    client=client_name(usage.client),
                    is_me=usage.client == own,
                    num_requests=usage.num_requests,
                    num_prompt_tokens=usage.num_prompt_tokens,
                    num_generated_tokens=usage.num_generated_tokens,
                )
                for usage in context.clients(request)
            ]
        )

    @router.get("/ui/{name:path}", include_in_schema=False)
    async def file(name: str, request: Request) -> Response:
        if name not in files:
            raise HTTPException(404, f"The page has no file {name:.100}.")
        return _answer(files[name], request)

    return router


def client_name(client: str) -> str:
    """How the page names a client: the first digits of its key's digest, or its address."""
    kind, _, rest = client.partition(":")
    if kind == "key":
        return f"key {rest[:8]}"
    return rest if kind == "address" else client or "unknown"


def _answer(file: PageFile, request: Request) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    known = request.headers.get("if-none-match", "")
    if known == "*" or file.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _row(info: ModelInfo) -> PageModel:
    return PageModel(
        id=info.name,
        aliases=list(dict.fromkeys((info.name, *info.aliases))),
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

"""Conformance of request gates, routers and metrics exporters."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from fastapi import APIRouter, FastAPI, Request
from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from quire.errors import NotFound, QuireError
from quire.records import (
    Context,
    GateRequest,
    MetricsExporter,
    RequestGate,
    RequestGateImpl,
    RequestRefused,
    Router,
    RouterContext,
    Upload,
)
from quire.types import AdapterStats, EngineStats
from quire_testing.require import require

B = TypeVar("B", bound=BaseModel)

THREADS = 8
"""Threads that call a gate at once."""


def check_request_gate(
    record: RequestGate,
    *,
    admitted: Sequence[GateRequest],
    refused: Sequence[GateRequest] = (),
    options: Mapping[str, Any] | None = None,
) -> None:
    """A gate answers in the right form, leaves the request it was given unchanged, and works in several threads.

    admitted, refused: requests that a gate which was just built must pass, or refuse.
    """
    context = Context(options=options or {})
    for request in admitted:
        answer = _ask(record.build(context), request)
        require(isinstance(answer, GateRequest), f"{record.name} must admit {request!r:.200}; it gave {answer!r:.200}.")
    for request in refused:
        answer = _ask(record.build(context), request)
        require(isinstance(answer, RequestRefused), f"{record.name} must refuse {request!r:.200}.")
    gate = record.build(context)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda request: _ask(gate, request), [*admitted, *refused] * THREADS))


def _ask(gate: RequestGateImpl, request: GateRequest) -> GateRequest | RequestRefused:
    before = copy.deepcopy(request)
    answer: object = gate.admit(request)
    require(request == before, "admit must not change the request: return a copy (`dataclasses.replace`).")
    if isinstance(answer, RequestRefused):
        require(400 <= answer.status <= 503, f"A refusal has a status from 400 to 503; got {answer.status}.")
        require(answer.message.strip(), "A refusal has a sentence for the client.")
        return answer
    if not isinstance(answer, GateRequest):
        raise AssertionError(f"admit must return a GateRequest or a RequestRefused; got {answer!r:.80}.")
    require(answer.route == request.route, "A gate may not change the route.")
    try:
        json.dumps(answer.body)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"The body of the admitted request is not JSON: {error}.") from error
    return answer


def check_router(record: Router, paths: Sequence[str] = (), *, options: Mapping[str, Any] | None = None) -> None:
    """The router is built from a `RouterContext`, describes its routes, and answers `GET` of `paths` below 500.

    The context has no models: what generates raises NotFound, as on a server that serves none.
    """
    router: object = record.build(_context(options or {}))
    if not isinstance(router, APIRouter):
        raise AssertionError(f"build must return a fastapi.APIRouter; got {router!r:.80}.")
    require(router.routes, f"{record.name} has no routes.")
    app = FastAPI()
    app.include_router(router)
    record.body_models()
    app.add_exception_handler(NotFound, _not_found)
    app.openapi()
    if record.error_body is not None:
        body: object = record.error_body(NotFound("No model is served.", "model"), None)
        require(isinstance(body, Mapping) and json.dumps(body), f"error_body must return a JSON object; got {body!r}.")
    for path in paths:
        status = asyncio.run(_get(app, path))
        require(status < 500 and status != 405, f"GET {path} is answered with {status}.")
    for path in record.open_paths:
        status = asyncio.run(_get(app, path))
        require(status < 400, f"{path} needs no key, but GET {path} is answered with {status}.")


def _context(options: Mapping[str, Any]) -> RouterContext:
    async def read(request: Request, schema: type[B]) -> B:
        return schema.model_validate(await request.json())

    async def stream(
        request: Request,
        pieces: AsyncGenerator[bytes, None],
        failure: Callable[[QuireError], bytes],
        media_type: str = "text/event-stream",
    ) -> Response:
        return StreamingResponse(pieces, media_type=media_type)

    return RouterContext(
        options=options,
        models=lambda: (),
        adapters=lambda: (),
        generate=_no_model,
        chat=_no_model,
        complete=_no_model,
        transcribe=_no_model,
        read=read,
        stream=stream,
        call=_no_model,
        post=_no_model,
        upload=_no_upload,
        client_of=lambda request: "",
        formats=_no_model,
        clients=lambda request: (),
        model_control=_NoModels(),
    )


class _NoModels:
    """The `ModelControl` of a server without models that loads none."""

    def states(self) -> Mapping[str, str]:
        return {}

    async def load(self, name: str, model: str, settings: Mapping[str, Any] | None = None, wait: bool = True) -> object:
        return await _no_model()

    async def unload(self, name: str, force: bool = False) -> str:
        return str(await _no_model())

    async def sleep(self, model: str | None = None, level: int = 1, mode: str = "abort") -> None:
        await _no_model()

    async def wake(self, model: str | None = None, tags: Collection[str] | None = None) -> bool:
        return bool(await _no_model())

    def is_sleeping(self, model: str | None = None) -> bool:
        return False

    def alias_weights(self) -> Mapping[str, Mapping[str, float]]:
        return {}

    def set_alias(self, alias: str, model: str | None = None, models: Mapping[str, float] | None = None) -> object:
        raise NotFound("No model is served.", "model")

    def remove_alias(self, alias: str) -> None:
        raise NotFound("There is no alias.", "alias")


@asynccontextmanager
async def _no_upload(request: Request, field: str, max_bytes: int) -> AsyncIterator[Upload]:
    yield Upload({}, None, "", 0)


async def _no_model(*args: Any, **kwargs: Any) -> Any:
    raise NotFound("No model is served.", "model")


async def _not_found(request: Any, error: Exception) -> Any:
    from fastapi.responses import JSONResponse

    return JSONResponse({"error": {"message": str(error)}}, 404)


async def _get(app: FastAPI, path: str) -> int:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return (await client.get(path)).status_code


def check_metrics_exporter(record: MetricsExporter, *, options: Mapping[str, Any] | None = None) -> None:
    """An exporter takes statistics of models of any name, with and without adapters, and returns nothing."""
    exporter = record.build(Context(options=options or {}))
    for model in ("tiny", "owner/model-1.5", "with spaces, 'quotes' and ümlauts"):
        for adapters in (None, AdapterStats(max_slots=2, running=("a/b",))):
            stats = EngineStats(model=model, num_running=3, iteration_tokens=(4, 1), adapters=adapters)
            for _ in range(2):
                answer: object = exporter.observe(stats)  # type: ignore[func-returns-value]
                require(answer is None, f"observe must return nothing; it returned {answer!r:.40}.")

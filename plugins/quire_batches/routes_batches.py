"""`/v1/batches`: files of requests that are answered behind all other requests."""

from __future__ import annotations

import re
from functools import partial
from typing import Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field, field_validator
from starlette.responses import Response
from starlette.routing import Match

from quire.errors import BadRequest
from quire.plugin import Identifier, RequestModel, RouterContext, json_body
from quire.types.batch_line import URLS
from quire_batches.records import RUNNING, StoredBatch, page
from quire_batches.routes_files import ERRORS, MAX_EXPIRY_S, MIN_EXPIRY_S, answer, first, owner_of
from quire_batches.service import BatchService

PATH = "/v1/batches"
ENDPOINTS = (*URLS, "/v1/responses", "/v1/messages", "/v1/moderations")
"""Routes that batches may use, where the server has them."""

MAX_WINDOW_S = 30 * 86_400
UNITS_S = {"m": 60, "h": 3600, "d": 86_400}
MAX_PAIRS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512


class OutputExpiresAfter(RequestModel):
    """The lifetime of the files with the answers."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)


class BatchRequest(RequestModel):
    """The body of `POST /v1/batches`. completion_window: a number of minutes, hours or days, as in 90m, 24h or 7d."""

    input_file_id: Identifier
    endpoint: Identifier
    completion_window: str = Field(pattern=r"^[1-9][0-9]{0,4}[mhd]$")
    metadata: dict[str, str] | None = None
    output_expires_after: OutputExpiresAfter | None = None

    @field_validator("metadata")
    @classmethod
    def _is_small(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        pairs = value or {}
        if len(pairs) > MAX_PAIRS or any(len(k) > MAX_KEY_CHARS or len(v) > MAX_VALUE_CHARS for k, v in pairs.items()):
            raise ValueError(
                f"at most {MAX_PAIRS} keys of {MAX_KEY_CHARS} characters with values of {MAX_VALUE_CHARS} are allowed"
            )
        return value


def build(context: RouterContext, service: BatchService) -> APIRouter:
    router = APIRouter(tags=["Batches"], responses=ERRORS)
    owner = partial(owner_of, context)

    @router.post(PATH, openapi_extra=json_body(BatchRequest))
    async def create(request: Request) -> Response:
        """Begin a batch. Its file is checked in the background: see `status` and `errors`."""
        fields = await context.read(request, BatchRequest)
        _check_endpoint(request, fields.endpoint)
        file = await service.file(owner(request), fields.input_file_id)
        if file.purpose != "batch":
            raise BadRequest(f"The file has the purpose {file.purpose}; it must be batch.", "input_file_id")
        now, expires = int(service.now()), fields.output_expires_after
        batch = StoredBatch(
            id=service.new_id("batch_"),
            owner=file.owner,
            endpoint=fields.endpoint,
            input_file_id=file.id,
            completion_window=fields.completion_window,
            created_at=now,
            expires_at=now + _window_s(fields.completion_window),
            metadata=fields.metadata,
            output_expires_s=expires.seconds if expires is not None else None,
        )
        await service.add(batch)
        return answer(batch.public())

    @router.get(PATH)
    async def list_batches(
        request: Request, limit: int = Query(20, ge=1, le=100), after: str | None = None
    ) -> Response:
        """The batches of the client, the latest first, a page at a time."""
        of = owner(request)

        def read() -> tuple[list[StoredBatch], bool]:
            return first(list(service.store.batches.of(of, after, ascending=False)), limit)

        return answer(page(*(await service.call(read) if await service.open() else ([], False))))

    @router.get(PATH + "/{batch_id}")
    async def retrieve(request: Request, batch_id: str) -> Response:
        """The state of a batch."""
        return answer((await service.batch_of(owner(request), batch_id)).public())

    @router.post(PATH + "/{batch_id}/cancel")
    async def cancel(request: Request, batch_id: str) -> Response:
        """End a batch; what is answered until then is in its files."""
        await service.batch_of(owner(request), batch_id)

        def cancelled(batch: StoredBatch) -> StoredBatch:
            if batch.status not in RUNNING:
                raise BadRequest(f"The batch has ended: it is {batch.status}.", "batch_id")
            if batch.outcome:
                return batch
            return batch.moved("cancelling", outcome="cancelled")

        batch = await service.update(batch_id, cancelled)
        service.runner.stop(batch_id)
        return answer(batch.public())

    return router


def _check_endpoint(request: Request, endpoint: str) -> None:
    def is_served(path: str) -> bool:
        scope = {"type": "http", "method": "POST", "path": path, "root_path": "", "headers": []}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    allowed = [path for path in ENDPOINTS if is_served(path)]
    if endpoint not in allowed:
        raise BadRequest(f"`endpoint` must be one of {', '.join(allowed)}; got {endpoint!r:.80}.", "endpoint")


def _window_s(window: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([mhd])", window).groups()  # type: ignore[union-attr]  # the schema checked it
    return min(int(number) * UNITS_S[unit], MAX_WINDOW_S)

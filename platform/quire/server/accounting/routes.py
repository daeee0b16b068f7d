"""The routes of accounts: `GET /v1/usage` for every client, `GET /v1/audit` for administrators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from quire.errors import NotFound, QuireError
from quire.server.accounting.query import read_query
from quire.server.accounting.reading import UsageReader, audit_answer, audit_sql
from quire.server.accounting.records import tenant_of
from quire.server.http.auth import may_see_all_clients
from quire.server.http.responses import error_responses, json_response
from quire.server.schemas.accounting import AuditList, UsagePage
from quire.server.service.service import Service, client_identity, get_service

router = APIRouter(prefix="/v1", tags=["Accounts"])

_CSV: dict[str, Any] = {"text/csv": {"schema": {"type": "string"}}}


def _parameter(name: str, description: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema or {"type": "string"}}


_PARAMETERS = [
    _parameter("from", "First time: Unix seconds or ISO 8601; also start_time."),
    _parameter("to", "Time after the last one; also end_time."),
    *(_parameter(name, "Only this one; may be repeated.") for name in ("tenant", "model", "adapter", "endpoint")),
    _parameter("outcome", "Only finished, aborted or failed requests; may be repeated."),
    _parameter("group_by", "tenant, model, adapter, endpoint, outcome: several with commas, or repeated."),
    _parameter("bucket_width", "How long a bucket is.", {"enum": ["1m", "1h", "1d", "all"], "default": "1d"}),
    _parameter("format", "Of the answer.", {"enum": ["json", "csv"], "default": "json"}),
    _parameter("limit", "Rows of a page.", {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1000}),
    _parameter("page", "`next_page` of the page before."),
]


class NotYours(QuireError):
    """A client asked for what only administrators, or another client, may see."""

    status = 403
    type = "PermissionDeniedError"


@router.get(
    "/usage",
    response_model=None,
    responses={
        200: {"model": UsagePage, "description": "Sums by bucket.", "content": _CSV},
        **error_responses(400, 401, 403, 404, 503),
    },
    openapi_extra={"parameters": _PARAMETERS},
)
async def usage(request: Request) -> Response:
    """What ended requests used. A client sees its own; an administrator that of all."""
    service = get_service(request)
    reader = _reader(service)
    query, format = read_query(request.query_params.multi_items())
    if not _sees_all(service, request):
        own = tenant_of(client_identity(request))
        if set(query.filters.get("tenant", (own,))) != {own}:
            raise NotYours("The usage of other tenants can be seen with an admin key only.")
        query = replace(query, filters={**query.filters, "tenant": (own,)})
    rows = await reader.rows(*query.sql())
    answer = query.answer(rows)
    if format == "json":
        return json_response(answer)
    headers = {"x-next-page": answer["next_page"]} if answer["has_more"] else {}
    return Response(query.csv(rows), media_type="text/csv", headers=headers)


@router.get(
    "/audit",
    response_model=None,
    responses={200: {"model": AuditList}, **error_responses(400, 401, 403, 404, 422, 503)},
)
async def audit(
    request: Request,
    actor: str | None = Query(None, description="Only changes by this tenant."),
    action: str | None = Query(None, description="Only changes of this kind."),
    target: str | None = Query(None, description="Only changes of what has this name."),
    limit: int = Query(100, ge=1, le=1000),
    page: int | None = Query(None, ge=0, lt=1 << 62, description="`next_page` of the page before."),
) -> Response:
    """Who changed what of the server, the newest first. For administrators."""
    service = get_service(request)
    reader = _reader(service)
    if not _sees_all(service, request):
        raise NotYours("The audit log can be seen with an admin key only.")
    given = (("actor", actor), ("action", action), ("target", target))
    statement, values = audit_sql(page, limit, [(name, value) for name, value in given if value is not None])
    return json_response(audit_answer(await reader.rows(statement, values), limit))


def _reader(service: Service) -> UsageReader:
    if service.accounting.reader is None:
        raise NotFound("This server stores no usage and no audit log; --usage-db FILE has it store them.")
    return service.accounting.reader


def _sees_all(service: Service, request: Request) -> bool:
    return may_see_all_clients(request.scope, service.config.api_key, service.config.admin_api_key)

"""The parts of the running server, which every route uses, and the first steps of every request.

Those steps are: read the body, pass the request gates, validate, find the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from fastapi import Request as HttpRequest
from pydantic import BaseModel
from starlette.requests import HTTPConnection
from starlette.types import Receive

from quire import __version__
from quire.errors import BadRequest
from quire.records import Registry
from quire.server.accounting.build import Accounting
from quire.server.accounting.records import tenant_of
from quire.server.changes.aliases import ModelAlias
from quire.server.changes.control import RunningModels
from quire.server.changes.reload import Reload
from quire.server.changes.schemas import Reloaded
from quire.server.changes.uses import use_of
from quire.server.http.auth import CALLER, CLIENT, KEY_DIGEST, path_of
from quire.server.http.body import Bodies, Body, validate
from quire.server.http.request_ids import MAX_ID_LENGTH, header_id, random_id
from quire.server.http.sse import cancel_on_disconnect
from quire.server.jobs.active import ActiveJobs
from quire.server.jobs.generation import GenerationJob
from quire.server.jobs.pooling import PoolingJob
from quire.server.metrics.metrics import Metrics
from quire.server.metrics.telemetry import Telemetry
from quire.server.process.workers import WorkerPools
from quire.server.residency.leases import Leases, leases_of
from quire.server.residency.residency import Residency
from quire.server.schemas.adapters import AdapterChoice
from quire.server.service.adapters import AdapterService
from quire.server.service.client_protocol import ClientProtocol
from quire.server.service.gates import Gates
from quire.server.service.model_loads import ModelLoads
from quire.server.service.models import ModelDirectory, ModelFilter, ServedModel
from quire.server.service.request_fields import RequestFields, check_list_lengths, reject_unsupported
from quire.server.tenants.tenants import Tenants
from quire.server.tenants.ticket import CURRENT, current_caller, may_use_model
from quire.settings.server_config import ServerConfig
from quire.types import Request

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Service:
    """The parts of the running server; one per application, at `app.state.service`."""

    config: ServerConfig
    client: ClientProtocol
    registry: Registry
    models: ModelDirectory
    request_fields: RequestFields
    gates: Gates
    metrics: Metrics
    telemetry: Telemetry
    accounting: Accounting
    inflight: ActiveJobs
    adapters: AdapterService
    model_loads: ModelLoads
    control: RunningModels
    reload: Reload
    residency: Residency
    bodies: Bodies
    pools: WorkerPools
    tenants: Tenants | None = None

    async def parse_request(
        self, request: HttpRequest, schema: type[B], *filters: ModelFilter
    ) -> tuple[ServedModel, B]:
        """Read and validate the body; returns the model that it names and its fields. Raises a `QuireError`.

        filters: choose the model of a body that names none, see `ModelDirectory.default_for`.
        """
        return await self.validate_body(request, await self.bodies.read(request), schema, *filters)

    async def validate_body(
        self, request: HTTPConnection, read: Body, schema: type[B], *filters: ModelFilter
    ) -> tuple[ServedModel, B]:
        """`parse_request` for a body that was read already."""
        body = read.value
        given = body.get("model")
        default = partial(self.residency.registrations.default_for, *filters)
        name = given if isinstance(given, str) and given else default()
        with self.inflight.pending():
            if self.gates.are_loaded:
                body = await self.gates.admit(request.scope["path"], name, body, request.headers)
        reject_unsupported(body, self.request_fields, supported=schema.model_fields)
        check_list_lengths(body)
        fields: Any = await self.bodies.validate(read, partial(validate, schema, body))
        adapters = getattr(fields, "adapters", None)
        model = fields.model or (None if adapters else default())  # an adapter determines its model
        receive = request.receive if isinstance(request, HttpRequest) else None

        def key_of(alias: ModelAlias) -> str | None:
            return alias.key_of(body, client_identity(request))

        served = await self.find_model(model, leases_of(request.scope), adapters, receive, key_of)
        if (use := use_of(request.scope)) is not None:
            use.begin(served.info.name, served.by_alias and may_use_model(served.info.name))
        caller = current_caller()
        return (served.with_limits(caller.max_context, caller.max_media_bytes) if caller else served), fields

    async def find_model(
        self,
        name: str | None,
        leases: Leases,
        adapters: Sequence[AdapterChoice] | None = None,
        receive: Receive | None = None,
        key_of: Callable[[ModelAlias], str | None] = lambda alias: None,
    ) -> ServedModel:
        """The model or adapter called `name`, in memory until the leases end; it is loaded if it is not.

        adapters: to use with the model; without a name they determine it. receive: of the client, which may disconnect
        while it waits. key_of: what the choice among the models of an alias depends on. Raises a `QuireError`.
        """
        alias = self.models.visible_alias(name)
        target = name if alias is None else alias.choose(key_of(alias))
        wanted = target or (adapters[0].name if adapters else None)
        one = self.residency.find(wanted, is_target=alias is not None)
        using = self.residency.use(one, leases)
        with self.inflight.pending():
            if receive is not None and self.residency.must_wait(one):
                await cancel_on_disconnect(receive, using)
            else:
                await using
        return await self.adapters.find(target, adapters, alias)

    async def encode(self, large: bool, encode: Callable[[], T]) -> T:
        """The result of `encode`, which runs in a worker thread if the answer is large."""
        return await self.pools.answers.run(lambda _: encode()) if large else encode()

    def audited(
        self, request: HTTPConnection, action: str, target: str, details: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        """Records in the audit log what a request changes in the `with` block; arguments as for `Audit.change`."""
        return self.accounting.audit.change(tenant_of(client_identity(request)), action, target, details)

    async def reload_settings(self, actor: str) -> Reloaded:
        """Read the settings again, as `Reload.run` does, and record it in the audit log."""
        details: dict[str, Any] = {}
        with self.accounting.audit.change(actor, "reload", "settings", details):
            done = await self.reload.run()
            details.update(done.model_dump(exclude={"object"}))
        return done

    def generation_job(self, served: ServedModel, requests: Sequence[Request], streams: bool = False) -> GenerationJob:
        """A job that generates for each of these requests."""
        return GenerationJob(
            self.client,
            served.info.name,
            served.tokenizer,
            served.info.eos_ids,
            self._admit(requests),
            self.inflight,
            self.telemetry,
            self.metrics,
            streams,
            CURRENT.get(),
        )

    def pooling_job(self, served: ServedModel, requests: Sequence[Request]) -> PoolingJob:
        """A job that pools each of these requests."""
        requests, ticket = self._admit(requests), CURRENT.get()
        return PoolingJob(self.client, served.info.name, requests, self.inflight, self.telemetry, self.metrics, ticket)

    def _admit(self, requests: Sequence[Request]) -> Sequence[Request]:
        """The requests as the tenant may send them, and with salts that differ between clients, if each has its own
        prefix cache: salts of clients contain no NUL. Raises what `Ticket.admit` raises."""
        ticket = CURRENT.get()
        if ticket is not None:
            requests = ticket.admit(requests)
        if not self.config.caches_are_apart or (ticket is not None and ticket.caller.tenant.share_cache):
            return requests
        return [replace(request, cache_salt=f"{request.client}\0{request.cache_salt or ''}") for request in requests]


def client_identity(request: HTTPConnection) -> str:
    """The name under which a client gets its share of the engine: that of its tenant, else its API key's digest if keys
    are required, else its network address; empty if none is known. Calls from within the process name the client.
    """
    named: str | None = request.scope.get(CLIENT)
    if named is not None:
        return named
    if (caller := request.scope.get(CALLER)) is not None:
        return str(caller.tenant.name)
    digest: str | None = request.scope.get(KEY_DIGEST)
    if digest is not None:
        return f"key:{digest}"
    return f"address:{request.client.host}" if request.client is not None else ""


def endpoint_of(request: HTTPConnection) -> str:
    """The path of the route that a request came by, with the names of its variables instead of their values."""
    path: str = getattr(request.scope.get("route"), "path", "") or path_of(request.scope)
    return path


@dataclass(frozen=True, kw_only=True)
class ResponseIds:
    """The ids of one response.

    base: the client's id or a random one. unique: always random. client: identifies the client that sent the request.
    endpoint: path of the route.
    """

    base: str
    unique: str
    client: str
    endpoint: str

    @classmethod
    def from_request(cls, request: HTTPConnection, body_id: str | None) -> ResponseIds:
        """The base is the `X-Request-Id` header, else the body's `request_id`, else random. Raises `BadRequest`."""
        if body_id is not None and not 0 < len(body_id) <= MAX_ID_LENGTH:
            raise BadRequest(f"`request_id` must have from 1 to {MAX_ID_LENGTH} characters.", "request_id")
        unique = random_id()
        base = header_id(request.headers) or body_id or unique
        return cls(base=base, unique=unique, client=client_identity(request), endpoint=endpoint_of(request))

    def engine_id(self, prefix: str, number: int) -> str:
        """The id of an engine request: unique even if a client reuses an id. number: of its prompt."""
        if self.base == self.unique:
            return f"{prefix}{self.base}-{number}"
        return f"{prefix}{self.base}-{number}-{self.unique[:12]}"


def get_service(request: HttpRequest) -> Service:
    """The service of the application that a request was sent to."""
    return cast(Service, request.app.state.service)


def system_fingerprint(served: ServedModel) -> str:
    """The field of the OpenAI API that changes with the server's version, the architecture and the data type."""
    info = served.info
    return f"quire-{__version__}-{info.architecture}-{info.dtype}"

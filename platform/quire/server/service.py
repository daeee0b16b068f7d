"""What every route works with, and the way of a request into the server: read, gate, validate, route.

It knows no endpoint. One `Service` lives as long as the application.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from pydantic import BaseModel

from quire import __version__
from quire.errors import BadRequest
from quire.records import Registry
from quire.server.adapters import ServedAdapters
from quire.server.body import Bodies, Body
from quire.server.clients import client_of, with_own_caches
from quire.server.engines import Client
from quire.server.errors import validate
from quire.server.gates import Gates
from quire.server.inflight import InFlight
from quire.server.job import Job
from quire.server.lengths import check_lengths
from quire.server.metrics import Metrics
from quire.server.models import Served, ServedModels, Suits
from quire.server.params import FieldRules, refuse_unhonoured
from quire.server.pooling_job import PoolingJob
from quire.server.request_ids import MAX_LENGTH, header_id, random_id
from quire.server.telemetry import Telemetry
from quire.server.workers import Pools
from quire.server_config import ServerConfig
from quire.types import Request

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Service:
    """The parts of a running server."""

    config: ServerConfig
    client: Client
    registry: Registry
    models: ServedModels
    rules: FieldRules
    gates: Gates
    metrics: Metrics
    telemetry: Telemetry
    inflight: InFlight
    adapters: ServedAdapters
    bodies: Bodies
    pools: Pools

    async def accept(self, request: HttpRequest, schema: type[B], *suits: Suits) -> tuple[Served, B]:
        """The validated body and the model it names. Raises what becomes a 4xx or a plugin's 500.

        suits: which models a body means that names none, as for `ServedModels.usual`.
        """
        return await self.admit(request, await self.bodies.read(request), schema, *suits)

    async def admit(self, request: HttpRequest, read: Body, schema: type[B], *suits: Suits) -> tuple[Served, B]:
        """The same for a body that was read."""
        body = read.value
        asked = body.get("model")
        usual = self.models.usual(*suits)
        named = asked if isinstance(asked, str) and asked else usual
        with self.inflight.coming():
            body = await self.gates.admit(request.scope["path"], named, body, request.headers)
        refuse_unhonoured(body, self.rules, honoured=schema.model_fields)
        check_lengths(body)
        fields: Any = await self.bodies.validated(read, partial(validate, schema, body))
        adapters = getattr(fields, "adapters", None)
        name = fields.model or (None if adapters else usual)  # an adapter says whose it is
        return await self.adapters.find(name, adapters), fields

    async def written(self, large: bool, write: Callable[[], T]) -> T:
        """What `write` makes of an answer, in a worker thread if it is large."""
        return await self.pools.answers.run(lambda _: write()) if large else write()

    def job(self, served: Served, requests: Sequence[Request], streams: bool = False) -> Job:
        """The generations of one HTTP request."""
        return Job(
            self.client,
            served.info.name,
            served.tokenizer,
            served.info.eos_ids,
            self._in_their_caches(requests),
            self.inflight,
            self.telemetry,
            self.metrics,
            streams,
        )

    def pooling_job(self, served: Served, requests: Sequence[Request]) -> PoolingJob:
        """The same for prompts that are pooled."""
        requests = self._in_their_caches(requests)
        return PoolingJob(self.client, served.info.name, requests, self.inflight, self.telemetry, self.metrics)

    def _in_their_caches(self, requests: Sequence[Request]) -> Sequence[Request]:
        return with_own_caches(requests) if self.config.caches_are_apart else requests


@dataclass(frozen=True, kw_only=True)
class Naming:
    """How one answer calls itself. `base` is the client's id or a random one, `unique` never repeats.

    client: whose request it is.
    """

    base: str
    unique: str
    client: str

    @classmethod
    def of(cls, request: HttpRequest, body_id: str | None) -> Naming:
        """From the `X-Request-Id` header, else the body's `request_id`."""
        if body_id is not None and not 0 < len(body_id) <= MAX_LENGTH:
            raise BadRequest(f"`request_id` must have from 1 to {MAX_LENGTH} characters.", "request_id")
        unique = random_id()
        base = header_id(request.headers) or body_id or unique
        return cls(base=base, unique=unique, client=client_of(request.scope))

    def engine_id(self, prefix: str, number: int) -> str:
        """The name of a prompt's request in the engine: unique even when a client reuses an id."""
        if self.base == self.unique:
            return f"{prefix}{self.base}-{number}"
        return f"{prefix}{self.base}-{number}-{self.unique[:12]}"


def fingerprint(served: Served) -> str:
    """Changes when answers may change: with the server's version, the model or its data type."""
    info = served.info
    return f"quire-{__version__}-{info.architecture}-{info.dtype}"

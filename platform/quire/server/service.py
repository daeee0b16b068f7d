"""What every route works with, and the way of a request into the server: read, gate, validate, route.

It knows no endpoint. One `Service` lives as long as the application.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from pydantic import BaseModel

from quire import __version__
from quire.config import ServerConfig
from quire.errors import BadRequest
from quire.records import Registry
from quire.server.adapters import ServedAdapters
from quire.server.body import read_object
from quire.server.engines import Client
from quire.server.errors import validate
from quire.server.gates import Gates
from quire.server.inflight import InFlight
from quire.server.job import Job
from quire.server.metrics import Metrics
from quire.server.models import Served, ServedModels, Suits
from quire.server.params import FieldRules, refuse_unhonoured
from quire.server.pooling_job import PoolingJob
from quire.server.request_ids import MAX_LENGTH, header_id, random_id
from quire.server.telemetry import Telemetry
from quire.types import Request

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")

LONG_TEXT = 4096
"""Characters from which tokenizing goes to a worker thread, which costs more than it saves below."""


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

    async def accept(self, request: HttpRequest, schema: type[B], *suits: Suits) -> tuple[Served, B]:
        """The validated body and the model it names. Raises what becomes a 4xx or a plugin's 500.

        suits: which models a body means that names none, as for `ServedModels.usual`.
        """
        return await self.admit(request, await read_object(request), schema, *suits)

    async def admit(
        self, request: HttpRequest, body: dict[str, Any], schema: type[B], *suits: Suits
    ) -> tuple[Served, B]:
        """The same for a body that was read."""
        asked = body.get("model")
        usual = self.models.usual(*suits)
        named = asked if isinstance(asked, str) and asked else usual
        with self.inflight.coming():
            body = await self.gates.admit(request.scope["path"], named, body, request.headers)
        refuse_unhonoured(body, self.rules)
        fields: Any = validate(schema, body)
        adapters = getattr(fields, "adapters", None)
        name = fields.model or (None if adapters else usual)  # an adapter says whose it is
        return await self.adapters.find(name, adapters), fields

    def job(self, served: Served, requests: Sequence[Request]) -> Job:
        """The generations of one HTTP request."""
        info, metrics = served.info, self.metrics
        return Job(
            self.client, info.name, served.tokenizer, info.eos_ids, requests, self.inflight, self.telemetry, metrics
        )

    def pooling_job(self, served: Served, requests: Sequence[Request]) -> PoolingJob:
        """The same for prompts that are pooled."""
        return PoolingJob(self.client, served.info.name, requests, self.inflight, self.telemetry, self.metrics)


@dataclass(frozen=True, kw_only=True)
class Naming:
    """How one answer calls itself. `base` is the client's id or a random one, `unique` never repeats."""

    base: str
    unique: str

    @classmethod
    def of(cls, request: HttpRequest, body_id: str | None) -> Naming:
        """From the `X-Request-Id` header, else the body's `request_id`."""
        if body_id is not None and not 0 < len(body_id) <= MAX_LENGTH:
            raise BadRequest(f"`request_id` must have from 1 to {MAX_LENGTH} characters.", "request_id")
        unique = random_id()
        return cls(base=header_id(request.headers) or body_id or unique, unique=unique)

    def engine_id(self, prefix: str, number: int) -> str:
        """The name of a prompt's request in the engine: unique even when a client reuses an id."""
        if self.base == self.unique:
            return f"{prefix}{self.base}-{number}"
        return f"{prefix}{self.base}-{number}-{self.unique[:12]}"


def fingerprint(served: Served) -> str:
    """Changes when answers may change: with the server's version, the model or its data type."""
    info = served.info
    return f"quire-{__version__}-{info.architecture}-{info.dtype}"


async def off_loop(heavy: bool, work: Callable[[], T]) -> T:
    """Run `work` in a thread if it may take long."""
    return await asyncio.to_thread(work) if heavy else work()

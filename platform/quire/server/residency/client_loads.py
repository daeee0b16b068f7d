"""Models that clients load and unload: what they load comes and goes as the models of the settings do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from quire.errors import BadRequest, ConfigError, NotFound, QuireError
from quire.server.residency.leases import Leases
from quire.server.residency.policy import models_to_evict
from quire.server.residency.registration import Registration
from quire.server.residency.registrations import Registrations
from quire.server.residency.residency import Residency
from quire.server.residency.size_estimate import estimate
from quire.server.residency.waiting import Waiting
from quire.server.schemas.models import LoadModelRequest, UnloadModelRequest
from quire.server.service.model_loads import ModelLoad, ModelLoads
from quire.server.service.models import ServedModel
from quire.server.service.new_models import NewModels, check_model_name
from quire.settings.model_config import ModelConfig

Outcome = ServedModel | ModelLoad


class ClientLoads:
    """Carries out `POST /v1/load_model` and `POST /v1/unload_model`, and loads models that the settings got while the
    server runs. For one event loop.
    """

    def __init__(self, residency: Residency, loads: ModelLoads, new_models: NewModels, waiting: Waiting) -> None:
        self._residency, self._loads, self._new_models, self._waiting = residency, loads, new_models, waiting
        self._tasks: set[asyncio.Task[Outcome]] = set()

    @property
    def registrations(self) -> Registrations:
        """The models that requests may name."""
        return self._residency.registrations

    async def load(self, request: LoadModelRequest) -> ServedModel | ModelLoad | Registration:
        """Load a model, or register one that is to be loaded on demand. Continues if the caller is canceled.

        Idle models are unloaded first if there is no room. Raises what `ModelLoads.load` raises, and Overloaded.
        """
        check_model_name(request.name)
        self._new_models.check_allowed()
        self._check_not_registered(request.name)
        config = await asyncio.to_thread(self._new_models.config, request)
        try:
            size = await asyncio.to_thread(estimate, config)
        except ConfigError as error:
            raise NotFound(error.message, "model") from error
        one = Registration(config=config, size=size)
        if one.is_on_demand:
            self._register_unloaded(one)
            return one
        return await self._shielded(self._load(one, partial(self._loads.load, request)))

    async def load_configured(self, config: ModelConfig) -> None:
        """Load or register a model of the operator's settings. Raises what `ModelLoads.load_configured` raises."""
        self._check_not_registered(config.name)
        one = Registration(config=config)
        with suppress(ConfigError):  # the load says what is wrong with its folder, and keeps that
            one.size = await asyncio.to_thread(estimate, config)
        if one.is_on_demand:
            self._register_unloaded(one)
        else:
            await self._shielded(self._load(one, partial(self._loads.load_configured, config)))

    def _register_unloaded(self, one: Registration) -> None:
        for name in one.names:
            self._check_not_registered(name)
            self._loads.check_free(name)
        self._residency.registrations.add(one)

    async def _shielded(self, loading: Coroutine[Any, Any, Outcome]) -> Outcome:
        """The outcome of a load that goes on if the caller is canceled."""
        task = asyncio.create_task(loading)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    @asynccontextmanager
    async def room_to_wake(self, name: str) -> AsyncIterator[None]:
        """While a sleeping model is restored: there is room in the budget for what it lacks, and it is not unloaded.

        Idle models are unloaded for it. Raises Overloaded.
        """
        one, room = self.registrations.get(name), self._residency.room
        if one is None or not room.has_budget or not (lacking := room.bytes_awake(one) - room.bytes_of(one)):
            yield
            return
        with Leases() as leases:
            await self._residency.use(one, leases)
            try:
                await self._make_room(name, lacking)
                yield
            finally:
                room.incoming.pop(name, None)

    async def _make_room(self, name: str, size: int) -> None:
        """Return when so many bytes are kept for a model in `incoming`."""
        room = self._residency.room
        evicted = models_to_evict(room.residents(), room.limit(), size)
        if evicted or (evicted is None and room.has_budget):
            waits = asyncio.ensure_future(self._waiting.for_room(name, size, room.incoming))
            await asyncio.sleep(0)  # it has joined
            self._residency.wake()
            await waits
        else:
            room.incoming[name] = size

    async def _load(self, one: Registration, load: Callable[[], Awaitable[Outcome]]) -> Outcome:
        room = self._residency.room
        await self._make_room(one.name, room.bytes_of(one))
        try:
            outcome = await load()
        except BaseException:
            room.incoming.pop(one.name, None)
            raise
        if isinstance(outcome, ModelLoad) and outcome.task is not None:
            outcome.task.add_done_callback(partial(self._ended, one))
        else:
            self._register(one, outcome)
        return outcome

    def _ended(self, one: Registration, loading: asyncio.Task[ServedModel | QuireError]) -> None:
        self._register(one, None if loading.cancelled() or loading.exception() else loading.result())

    def _register(self, one: Registration, outcome: ServedModel | ModelLoad | QuireError | None) -> None:
        self._residency.room.incoming.pop(one.name, None)
        if isinstance(outcome, ServedModel):
            self._residency.add(one, outcome.info)

    def _check_not_registered(self, name: str) -> None:
        one = self._residency.registrations.get(name)
        if one is not None and not self._residency.registrations.is_served(one):
            raise BadRequest(
                f"The name `{name:.200}` is in use by a model that is loaded when a request asks for it.", "name"
            )

    async def unload(self, request: UnloadModelRequest) -> str:
        """Unload a model and forget it, or end its load; returns its name. Raises BadRequest and NotFound."""
        self._new_models.check_allowed()
        found = self._residency.registrations
        one = found.get(request.name) if request.name else None
        if one is None:
            return await self._loads.unload(request)
        found.remove(one)  # requests that come now are refused
        self._waiting.refuse(one, NotFound(f"The model `{one.name}` was unloaded.", "model"))
        try:
            if one.state == "unloading":
                await self._loads.evict(one.name)
                return one.name
            return await self._loads.unload(request)
        except NotFound:  # it was not loaded
            return one.name
        except BadRequest:
            found.add(one)
            raise

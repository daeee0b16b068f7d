"""Loads and unloads models while others are served.

The engine process loads the weights; this process loads the tokenizer and what else the front end of a model needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from quire.errors import BadRequest, NoMemory, NotFound, Overloaded, QuireError, StartupError
from quire.server.changes.uses import first_of
from quire.server.http.errors import as_quire_error
from quire.server.schemas.models import LoadModelRequest, UnloadModelRequest
from quire.server.service.client_protocol import ClientProtocol
from quire.server.service.load_parts import Frontends, Observers
from quire.server.service.models import ModelDirectory, ServedModel
from quire.server.service.new_models import NewModels, check_model_name
from quire.settings.model_config import ModelConfig

log = logging.getLogger("quire.server")

MAX_LOADS = 8
"""Models that are being loaded or wait for it; the engine process loads one at a time."""

MAX_FAILED = 32
"""Failed loads that are remembered; the oldest is forgotten first."""


@dataclass(eq=False)
class ModelLoad:
    """A load in progress, or one that has failed (`error`). root: the folder or hub id. is_unloaded: it is to end."""

    name: str
    root: str
    error: QuireError | None = None
    is_unloaded: bool = False
    task: asyncio.Task[ServedModel | QuireError] | None = None

    @property
    def state(self) -> Literal["loading", "failed"]:
        return "loading" if self.error is None else "failed"


@dataclass(eq=False)
class _Unload:
    """An unload in progress. forced: it does not wait for requests. frees: it has reached the engine process."""

    forced: asyncio.Event = field(default_factory=asyncio.Event)
    frees: bool = False
    task: asyncio.Task[None] | None = None


class ModelLoads:
    """The loads and unloads of a server. For one event loop.

    new_models: makes settings from requests. has_adapter: whether an adapter has a name. observers: get to know each
    model that comes or goes.
    """

    def __init__(
        self,
        client: ClientProtocol,
        models: ModelDirectory,
        new_models: NewModels,
        frontends: Frontends,
        has_adapter: Callable[[str], bool],
        observers: Observers,
    ) -> None:
        self._client, self._models, self._new_models, self._frontends = client, models, new_models, frontends
        self._has_adapter, self._observers = has_adapter, observers
        self._loads: dict[str, ModelLoad] = {}
        self._unloads: dict[str, _Unload] = {}
        self._removing: set[asyncio.Future[None]] = set()
        client.on_model_lost(self._lost)

    def get(self, name: str) -> ModelLoad | None:
        """The load of this name that is in progress or has failed; None if there is none."""
        return self._loads.get(name)

    def all(self) -> Mapping[str, ModelLoad]:
        """The loads in progress, and those that have failed, by name."""
        return self._loads

    # --- loading -----------------------------------------------------------------------------------

    async def load(self, request: LoadModelRequest) -> ModelLoad | ServedModel:
        """Load a model. Continues if the caller is canceled. With `wait`, returns the served model, else its load.

        Raises `BadRequest`, `NotFound` and `Overloaded`, and then has no effect.
        """
        name = request.name
        check_model_name(name)
        self._new_models.check_allowed()
        load = self._begin(name, request.model)
        try:
            config = await asyncio.to_thread(self._new_models.config, request)
            for alias in config.served_model_name[1:]:
                self.check_free(alias)
            if load.is_unloaded:
                raise _ended(name)
        except BaseException:
            del self._loads[name]
            raise
        load.task = asyncio.create_task(self._load(load, config, keep_failure=not request.wait))
        return await self._outcome(load.task) if request.wait else load

    async def load_configured(self, config: ModelConfig) -> ServedModel:
        """Load a model with settings of the operator; as `load` with `wait`, except that a failure is kept."""
        load = self._begin(config.name, config.model)
        load.task = asyncio.create_task(self._load(load, config, keep_failure=True))
        return await self._outcome(load.task)

    def _begin(self, name: str, root: str) -> ModelLoad:
        self.check_free(name)
        if sum(load.error is None for load in self._loads.values()) >= MAX_LOADS:
            raise Overloaded(f"{MAX_LOADS} models are being loaded already; try again later.")
        self._loads.pop(name, None)  # a failed one
        load = self._loads[name] = ModelLoad(name, root)
        return load

    async def _outcome(self, task: asyncio.Task[ServedModel | QuireError]) -> ServedModel:
        outcome = await asyncio.shield(task)
        if isinstance(outcome, QuireError):
            raise outcome
        return outcome

    async def load_config(self, config: ModelConfig) -> ServedModel:
        """Load a model that the server has registered. Raises why it could not be loaded."""
        load = self._loads[config.name] = ModelLoad(config.name, config.model)
        load.task = asyncio.create_task(self._load(load, config, keep_failure=False))
        return await self._outcome(load.task)

    async def _load(self, load: ModelLoad, config: ModelConfig, keep_failure: bool) -> ServedModel | QuireError:
        """The served model, or why it could not be loaded, which is kept for those who ask for its state."""
        try:
            served = await self._served(load, config)
        except asyncio.CancelledError:
            del self._loads[load.name]
            if not load.is_unloaded:
                raise
            return _ended(load.name)
        except Exception as error:
            del self._loads[load.name]
            failure = self.client_error(as_quire_error(error))
            log.warning("the model %s could not be loaded: %s", load.name, failure.message)
            if keep_failure and not load.is_unloaded:
                self._keep(load, failure)
            return failure
        del self._loads[load.name]
        self._observers.add_model(served.info)
        log.info("the model %s is served: %s", load.name, served.info.root)
        return served

    async def _served(self, load: ModelLoad, config: ModelConfig) -> ServedModel:
        info, _ = await asyncio.gather(self._client.load(config), asyncio.to_thread(self._frontends.prepare, [config]))
        try:
            (served,) = await asyncio.to_thread(self._frontends.load, [config], [info])
            if load.is_unloaded:
                raise _ended(load.name)
            self._models.add(served)
        except BaseException:
            with suppress(NotFound):  # an unload of its name came meanwhile
                await asyncio.shield(self._client.unload(info.name, force=True))
            raise
        return served

    @staticmethod
    def client_error(error: QuireError) -> QuireError:
        """A setting or folder that the client named is the client's error."""
        if isinstance(error, StartupError) and not isinstance(error, NoMemory):
            return BadRequest(error.message, error.param or "model")
        return error

    def _keep(self, load: ModelLoad, error: QuireError) -> None:
        """Remember a load that has failed."""
        load.error, load.task = error, None
        self._loads[load.name] = load
        failed = [name for name, one in self._loads.items() if one.error is not None]
        for name in failed[:-MAX_FAILED]:
            del self._loads[name]

    def check_free(self, name: str) -> None:
        """Raise `BadRequest` if a model, an alias or an adapter has the name."""
        self.check_not_a_model(name, "name")
        if self._models.aliases.get(name) is not None:
            raise BadRequest(f"The name `{name}` is in use by an alias.", "name")

    def check_not_a_model(self, name: str, param: str) -> None:
        """Raise `BadRequest`, for this field, if a model has a name, or will have it, or an adapter has it."""
        load = self._loads.get(name)
        if load is not None and load.error is None:
            raise BadRequest(f"The model `{name}` is being loaded already.", param)
        if self._models.find_leaving(name) is not None:
            raise BadRequest(f"The name `{name}` is in use until the model is unloaded.", param)
        if self._models.all and self._models.get(name) is not None:
            raise BadRequest(f"The name `{name}` is in use by a model.", param)
        if self._has_adapter(name):
            raise BadRequest(f"The name `{name}` is in use by an adapter.", param)

    # --- unloading ---------------------------------------------------------------------------------

    async def unload(self, request: UnloadModelRequest) -> str:
        """Unload a model when its requests have ended, end its load, or forget its failed load; returns its name.

        Continues if the caller is canceled. Raises `BadRequest` and `NotFound`.
        """
        self._new_models.check_allowed()
        name = request.name
        load = self._loads.get(name)
        if load is not None:
            await self._end(load)
            return name
        served = self._models.find_leaving(name) or (self._models.get(name) if self._models.all and name else None)
        if served is None:
            what = " It is an adapter: POST /v1/unload_lora_adapter unloads it." if self._has_adapter(name) else ""
            raise NotFound(f"The model `{name:.200}` is not loaded.{what}", "name")
        base = served.info.name
        if base in self._unloads:
            if not request.force:
                raise BadRequest(f"The model `{name}` is being unloaded already; `force` ends its requests.", "name")
            await self._hurry(base)
        else:
            if len(self._models.all) == 1 and not request.force:
                raise BadRequest(
                    f"The model `{name}` is the only one; load another first, or send `force`, which also ends its "
                    "running requests.",
                    "name",
                )
            self._start_unload(served, request.force)
        if (unloading := self._unloads.get(base)) and unloading.task:
            await asyncio.shield(unloading.task)
        return base

    async def evict(self, name: str) -> None:
        """Unload a model, whatever else is served, or wait for its unload that is under way. Raises `NotFound`."""
        served = self._models.find_leaving(name) or self._models.find(name)
        unload = self._unloads.get(served.info.name) or self._start_unload(served, force=False)
        if unload.task is not None:
            await asyncio.shield(unload.task)

    def _start_unload(self, served: ServedModel, force: bool) -> _Unload:
        base = served.info.name
        self._models.start_leaving(served)
        unload = self._unloads[base] = _Unload()
        if force:
            unload.forced.set()
        unload.task = asyncio.create_task(self._unload(base, unload))
        unload.task.add_done_callback(lambda _: self._unloads.pop(base))
        return unload

    async def _hurry(self, name: str) -> None:
        """Let an unload in progress wait for no more requests, and end those that run."""
        unload = self._unloads[name]
        unload.forced.set()
        if unload.frees:
            await self._client.unload(name, force=True)

    async def _end(self, load: ModelLoad) -> None:
        if load.error is not None:
            del self._loads[load.name]
            return
        load.is_unloaded = True
        if load.task is None:
            return  # its settings are being checked; it ends after that
        try:
            await self._client.unload(load.name)
        except NotFound:
            load.task.cancel()
        await asyncio.wait([load.task])

    async def _unload(self, name: str, unload: _Unload) -> None:
        at_once = " at once" if unload.forced.is_set() else ""
        log.info("the model %s takes no more requests and is unloaded%s", name, at_once)
        try:
            await first_of(self._models.uses.ended(name), unload.forced.wait())
            unload.frees = True
            await self._client.unload(name, unload.forced.is_set())
        finally:
            self._models.remove(name)
            await self._observers.remove_model(name)

    def _lost(self, name: str, error: QuireError) -> None:
        """The next engine process could not load a model again."""
        self._models.remove(name)
        self._keep(ModelLoad(name, ""), self.client_error(error))
        log.error("the model %s is no longer served, because it could not be loaded again: %s", name, error.message)
        removing = asyncio.ensure_future(self._observers.remove_model(name))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)


def _ended(name: str) -> BadRequest:
    return BadRequest(f"The model `{name}` was unloaded while it was being loaded.", "name")

"""Loads and unloads models while others are served.

The engine process loads the weights; this process loads the tokenizer and what else the front end of a model needs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from quire.errors import BadRequest, NoMemory, NotFound, Overloaded, QuireError, StartupError
from quire.server.http.errors import as_quire_error
from quire.server.schemas.models import LoadModelRequest, UnloadModelRequest
from quire.server.service.client_protocol import ClientProtocol
from quire.server.service.models import ModelDirectory, ServedModel
from quire.server.service.new_models import NewModels, check_model_name
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo

log = logging.getLogger("quire.server")

MAX_LOADS = 8
"""Models that are being loaded or wait for it; the engine process loads one at a time."""

MAX_FAILED = 32
"""Failed loads that are remembered; the oldest is forgotten first."""


class Frontends(Protocol):
    """Loads tokenizers, templates and parsers; `quire.server.process.frontend_loader.FrontendLoader` implements it."""

    def prepare(self, models: Sequence[ModelConfig]) -> None:
        """Load what needs no loaded weights; blocks, and raises nothing."""
        ...

    def load(self, models: Sequence[ModelConfig], infos: Sequence[ModelInfo]) -> list[ServedModel]:
        """What the server needs of each loaded model; blocks. Raises `StartupError`."""
        ...


class Observers(Protocol):
    """What has rows or series for each model, such as the metrics."""

    def add_model(self, info: ModelInfo) -> None: ...

    async def remove_model(self, name: str) -> None:
        """Forget a model, after the requests that have ended are counted."""
        ...


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
        self._unloads: dict[str, asyncio.Task[None]] = {}
        self._removing: set[asyncio.Future[None]] = set()
        client.on_model_lost(self._lost)

    def get(self, name: str) -> ModelLoad | None:
        """The load of this name that is in progress or has failed; None if there is none."""
        return self._loads.get(name)

    # --- loading -----------------------------------------------------------------------------------

    async def load(self, request: LoadModelRequest) -> ModelLoad | ServedModel:
        """Load a model. Continues if the caller is canceled. With `wait`, returns the served model, else its load.

        Raises `BadRequest`, `NotFound` and `Overloaded`, and then has no effect.
        """
        name = request.name
        check_model_name(name)
        self._new_models.check_allowed()
        self.check_free(name)
        if sum(load.error is None for load in self._loads.values()) >= MAX_LOADS:
            raise Overloaded(f"{MAX_LOADS} models are being loaded already; try again later.")
        load = ModelLoad(name, request.model)
        self._loads.pop(name, None)  # a failed one
        self._loads[name] = load
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
        if not request.wait:
            return load
        outcome = await asyncio.shield(load.task)
        if isinstance(outcome, QuireError):
            raise outcome
        return outcome

    async def load_config(self, config: ModelConfig) -> ServedModel:
        """Load a model that the server has registered. Raises why it could not be loaded."""
        load = self._loads[config.name] = ModelLoad(config.name, config.model)
        load.task = asyncio.create_task(self._load(load, config, keep_failure=False))
        outcome = await asyncio.shield(load.task)
        if isinstance(outcome, QuireError):
            raise outcome
        return outcome

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
            failure = _as_client_error(as_quire_error(error))
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

    def _keep(self, load: ModelLoad, error: QuireError) -> None:
        """Remember a load that has failed."""
        load.error, load.task = error, None
        self._loads[load.name] = load
        failed = [name for name, one in self._loads.items() if one.error is not None]
        for name in failed[:-MAX_FAILED]:
            del self._loads[name]

    def check_free(self, name: str) -> None:
        """Raise `BadRequest` if a model or an adapter has the name."""
        load = self._loads.get(name)
        if load is not None and load.error is None:
            raise BadRequest(f"The model `{name}` is being loaded already.", "name")
        if self._models.find_leaving(name) is not None:
            raise BadRequest(f"The name `{name}` is in use until the model is unloaded.", "name")
        if self._models.all and self._models.get(name) is not None:
            raise BadRequest(f"The name `{name}` is in use by a model.", "name")
        if self._has_adapter(name):
            raise BadRequest(f"The name `{name}` is in use by an adapter.", "name")

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
            await self._client.unload(base, force=True)
        else:
            if len(self._models.all) == 1 and not request.force:
                raise BadRequest(
                    f"The model `{name}` is the only one; load another first, or send `force`, which also ends its "
                    "running requests.",
                    "name",
                )
            self._start_unload(served, request.force)
        if unloading := self._unloads.get(base):
            await asyncio.shield(unloading)
        return base

    async def evict(self, name: str) -> None:
        """Unload a model, whatever else is served, or wait for its unload that is under way. Raises `NotFound`."""
        served = self._models.find_leaving(name) or self._models.find(name)
        base = served.info.name
        if base not in self._unloads:
            self._start_unload(served, force=False)
        await asyncio.shield(self._unloads[base])

    def _start_unload(self, served: ServedModel, force: bool) -> None:
        base = served.info.name
        self._models.start_leaving(served)
        task = self._unloads[base] = asyncio.create_task(self._unload(base, force))
        task.add_done_callback(lambda _: self._unloads.pop(base))

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

    async def _unload(self, name: str, force: bool) -> None:
        log.info("the model %s takes no more requests and is unloaded%s", name, " at once" if force else "")
        try:
            await self._client.unload(name, force)
        finally:
            self._models.remove(name)
            await self._observers.remove_model(name)

    def _lost(self, name: str, error: QuireError) -> None:
        """The next engine process could not load a model again."""
        self._models.remove(name)
        self._keep(ModelLoad(name, ""), _as_client_error(error))
        log.error("the model %s is no longer served, because it could not be loaded again: %s", name, error.message)
        removing = asyncio.ensure_future(self._observers.remove_model(name))
        self._removing.add(removing)
        removing.add_done_callback(self._removing.discard)


def _ended(name: str) -> BadRequest:
    return BadRequest(f"The model `{name}` was unloaded while it was being loaded.", "name")


def _as_client_error(error: QuireError) -> QuireError:
    """A setting or folder that the client named is the client's error."""
    if isinstance(error, StartupError) and not isinstance(error, NoMemory):
        return BadRequest(error.message, error.param or "model")
    return error

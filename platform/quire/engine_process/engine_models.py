"""The API process's record of the models of the engine process, and calls to load and unload them.

It outlives the engine process: a new one loads the same models. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from quire.engine_process.adapter_directory import Call
from quire.engine_process.wire.model_changes import LoadModel, ModelLoaded, UnloadModel
from quire.errors import BadRequest, ConfigError, EngineDied, ModelUnloaded, NotFound, QuireError
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo

OnLost = Callable[[str, QuireError], None]
"""Gets the name of a model that a new engine process could not load again, and the error."""


class EngineModels:
    """The models by name. `first`: those that every engine process must load.

    configs: settings, in the order of loading. infos: what the engine process said of each. progress: fractions of the
    weights that are loaded, of models that are being loaded. call: waits for the engine process and sends it a message.
    fail: ends the requests of a model with an error. on_unloaded: gets the name of a model whose calls have ended.
    """

    def __init__(
        self,
        first: Sequence[ModelConfig],
        call: Call,
        fail: Callable[[QuireError, str], None],
        on_unloaded: Callable[[str], None],
    ) -> None:
        self._call, self._fail, self._on_unloaded = call, fail, on_unloaded
        self.configs = list(first)
        self.infos: dict[str, ModelInfo] = {}
        self.progress: dict[str, float] = {}
        self.on_lost: OnLost = lambda name, error: None
        self._added: set[str] = set()
        self._loading: set[str] = set()
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: Counter[str] = Counter()
        self._ended = asyncio.Event()

    @property
    def added(self) -> list[str]:
        """Names of models that were loaded later than the first."""
        return [config.name for config in self.configs if config.name in self._added]

    def name_of(self, model: str) -> str:
        """The name of the model with this name or alias; raises NotFound."""
        for info in self.infos.values():
            if model == info.name or model in info.aliases:
                return info.name
        raise NotFound(f"The model `{model}` does not exist.", "model")

    def config(self, name: str) -> ModelConfig:
        return next(config for config in self.configs if config.name == name)

    async def load(self, config: ModelConfig) -> ModelInfo:
        """Load one more model while the others run. Raises what loading raises, and BadRequest if it is unloaded."""
        if config.name in self._loading:
            raise ConfigError(f"The model {config.name!r} is being loaded already.")
        self._loading.add(config.name)
        try:
            answer: ModelLoaded = await self._call(lambda call_id: LoadModel(call_id, config))
        finally:
            self._loading.discard(config.name)
            self.progress.pop(config.name, None)
        self.configs.append(config)
        self._added.add(config.name)
        self.infos[config.name] = answer.info
        return answer.info

    async def unload(self, model: str, force: bool = False) -> None:
        """Refuse new calls of a model at once, and unload it when its calls have ended; or end its load.

        force: end its calls with an error. Continues if the caller is canceled. Raises NotFound, and BadRequest for a
        model that is being unloaded already, unless this call forces it.
        """
        if model in self._loading:
            await self._call(lambda call_id: UnloadModel(call_id, model))
            self._forget(model)  # if it was loaded before the message arrived
            return
        name = self.name_of(model)
        task = self._unloading.get(name)
        if task is None:
            task = self._unloading[name] = asyncio.create_task(self._unload(name))
            task.add_done_callback(lambda _: self._unloading.pop(name))
        elif not force:
            raise BadRequest(f"The model `{name}` is being unloaded already.", "name")
        if force:
            self._fail(ModelUnloaded(f"The model `{name}` was unloaded; the request was ended."), name)
        await asyncio.shield(task)

    async def _unload(self, name: str) -> None:
        while name in self._running:
            self._ended.clear()
            await self._ended.wait()
        self._forget(name)
        self._on_unloaded(name)
        await self._free(name)

    async def _free(self, name: str) -> None:
        with suppress(NotFound, EngineDied):  # the engine process has ended meanwhile
            await self._call(lambda call_id: UnloadModel(call_id, name))

    def _forget(self, name: str) -> None:
        self.configs = [config for config in self.configs if config.name != name]
        self.infos.pop(name, None)
        self._added.discard(name)

    def restarted(self, infos: Sequence[ModelInfo], failed: Mapping[str, QuireError]) -> None:
        """An engine process has loaded models, but not the `failed` ones."""
        self.progress.clear()
        known = {config.name for config in self.configs}
        self.infos = {info.name: info for info in infos if info.name in known}
        for info in infos:
            if info.name not in known:  # it was unloaded while the engine process loaded it
                task = asyncio.ensure_future(self._free(info.name))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        for name, error in failed.items():
            self._forget(name)
            self.on_lost(name, error)

    # --- calls that use a model --------------------------------------------------------------------

    def check_serves(self, name: str) -> None:
        """Raise ModelUnloaded if a model takes no more calls."""
        if name in self._unloading:
            raise ModelUnloaded(f"The model `{name}` is being unloaded and takes no more requests.", "model")

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Around a call that uses a model."""
        self._running[name] += 1
        try:
            yield
        finally:
            self._running[name] -= 1
            if not self._running[name]:
                del self._running[name]
                self._ended.set()

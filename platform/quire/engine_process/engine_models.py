"""The API process's record of the models of the engine process, and calls that load, unload or wake them.

It outlives the engine process: a new one loads the same models. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from quire.engine_process.adapter_directory import AdapterDirectory, Call
from quire.engine_process.wire.model_changes import (
    LoadModel,
    ModelLoaded,
    ModelSleeps,
    SleepModel,
    UnloadModel,
    WakeModel,
)
from quire.errors import BadRequest, ConfigError, EngineDied, ModelAsleep, ModelUnloaded, NotFound, QuireError
from quire.settings.model_config import ModelConfig
from quire.types import ModelInfo

OnLost = Callable[[str, QuireError], None]
"""Gets the name of a model that a new engine process could not load again, and the error."""


WEIGHTS, KV_CACHE = SLEEP_TAGS = ("weights", "kv_cache")
"""The parts of a model that are woken one by one or together; the names are vLLM's."""


@dataclass(frozen=True)
class Sleep:
    """A model takes no requests, and these parts of it sleep. level: 1 keeps weights in host memory, 2 does not.

    has_weights: whether they are in the engine process.
    """

    level: int
    tags: frozenset[str] = frozenset(SLEEP_TAGS)
    has_weights: bool = True


class EngineModels:
    """The models by name. `first`: those that every engine process must load.

    configs: settings, in the order of loading. infos: what the engine process said of each. progress: fractions of the
    weights that are loaded, of models that are being loaded. call: waits for the engine process and sends it a message.
    fail: ends the requests of a model with an error. adapters: those of all models. sleeping: the models that sleep, by
    name; the engine process has at most their weights.
    """

    def __init__(
        self,
        first: Sequence[ModelConfig],
        call: Call,
        fail: Callable[[QuireError, str], None],
        adapters: AdapterDirectory,
    ) -> None:
        self._call, self._fail, self._adapters = call, fail, adapters
        self.configs = list(first)
        self.infos: dict[str, ModelInfo] = {}
        self.progress: dict[str, float] = {}
        self.sleeping: dict[str, Sleep] = {}
        self.on_lost: OnLost = lambda name, error: None
        self._added: set[str] = set()
        self._loading: set[str] = set()
        self._unloading: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: Counter[str] = Counter()
        self._ended = asyncio.Event()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # of models that sleep or wake

    @property
    def awake(self) -> list[ModelConfig]:
        """The settings of the models that a new engine process loads."""
        return [config for config in self.configs if config.name not in self.sleeping]

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
        await self._drained(name)
        async with self._locks[name]:
            self._forget(name)
            self._adapters.forget_model(name)
            await self._free(name)
        self._locks.pop(name, None)

    async def _drained(self, name: str) -> None:
        while name in self._running:
            self._ended.clear()
            await self._ended.wait()

    async def _free(self, name: str) -> None:
        with suppress(NotFound, EngineDied):  # the engine process has ended meanwhile
            await self._call(lambda call_id: UnloadModel(call_id, name))

    def _forget(self, name: str) -> None:
        self.configs = [config for config in self.configs if config.name != name]
        self.infos.pop(name, None)
        self.sleeping.pop(name, None)
        self._added.discard(name)

    def restarted(self, infos: Sequence[ModelInfo], failed: Mapping[str, QuireError]) -> None:
        """An engine process has loaded models, but not the `failed` ones."""
        self.progress.clear()
        self.sleeping = {name: replace(sleep, has_weights=False) for name, sleep in self.sleeping.items()}
        known = {config.name for config in self.configs}
        asleep = {name: info for name, info in self.infos.items() if name in self.sleeping}
        self.infos = {info.name: info for info in infos if info.name in known} | asleep
        for info in infos:
            if info.name not in known:  # it was unloaded while the engine process loaded it
                task = asyncio.ensure_future(self._free(info.name))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        for name, error in failed.items():
            self._forget(name)
            self.on_lost(name, error)

    # --- models that sleep -------------------------------------------------------------------------

    def sleep_of(self, name: str) -> Sleep | None:
        """How a model sleeps, or falls asleep; None: it is awake."""
        return self.sleeping.get(name)

    async def sleep(self, model: str, level: int = 1, abort: bool = True) -> None:
        """Refuse new calls of a model at once, and free memory when its calls have ended: its KV cache, at level 2 its
        weights too. Continues if the caller is canceled.

        abort: end its calls with an error. Raises NotFound, and ModelUnloaded for a model that is being unloaded.
        """
        name = self.name_of(model)
        self._check_stays(name)
        before = self.sleeping.get(name)
        self.sleeping[name] = Sleep(max(level, before.level if before else level))
        if abort:
            self._fail(_asleep(name), name)
        await self._shielded(self._sleep(name))

    async def _sleep(self, name: str) -> None:
        async with self._locks[name]:
            await self._drained(name)
            sleep = self.sleeping.get(name)
            if sleep is None or name not in self.infos:
                return  # it was woken or unloaded meanwhile
            config = self.config(name)
            with suppress(EngineDied):  # the next engine process does not load it
                answer: ModelSleeps = await self._call(
                    lambda call_id: SleepModel(call_id, config, keep_weights=sleep.level == 1)
                )
                if self.sleeping.get(name) is sleep:
                    self.sleeping[name] = replace(sleep, has_weights=answer.has_weights)

    async def wake(self, model: str, tags: Collection[str] = SLEEP_TAGS) -> None:
        """Restore parts of a model that sleeps; it takes calls again when all are awake. Continues if the caller is
        canceled. Raises NotFound and what loading raises, and then it sleeps on.
        """
        name = self.name_of(model)
        self._check_stays(name)
        await self._shielded(self._wake(name, frozenset(tags)))

    async def _wake(self, name: str, tags: frozenset[str]) -> None:
        async with self._locks[name]:
            sleep = self.sleeping.get(name)
            if sleep is None or name not in self.infos or not sleep.tags & tags:
                return
            left, has_weights = sleep.tags - tags, sleep.has_weights
            if WEIGHTS not in left:
                self._adapters.number_anew(name)
                adapters, config = self._adapters.of_model(name), self.config(name)
                try:
                    answer: ModelLoaded | ModelSleeps = await self._call(
                        lambda call_id: WakeModel(call_id, config, adapters, kv_cache=not left)
                    )
                finally:
                    self.progress.pop(name, None)
                if isinstance(answer, ModelLoaded):
                    self.infos[name] = answer.info
                has_weights = isinstance(answer, ModelLoaded) or answer.has_weights
            if self.sleeping.get(name) is sleep:  # it was not put to sleep again meanwhile
                self.sleeping[name] = replace(sleep, tags=left, has_weights=has_weights)
                if not left:
                    del self.sleeping[name]

    async def _shielded(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for work that goes on if the caller is canceled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    # --- calls that use a model --------------------------------------------------------------------

    def check_serves(self, name: str) -> None:
        """Raise ModelUnloaded or ModelAsleep if a model takes no calls."""
        self._check_stays(name)
        if name in self.sleeping:
            raise _asleep(name)

    def _check_stays(self, name: str) -> None:
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


def _asleep(name: str) -> ModelAsleep:
    return ModelAsleep(f"The model `{name}` sleeps and takes no requests until it is woken (POST /wake_up).", "model")

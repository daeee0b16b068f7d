"""Loads and unloads models in the engine process, and puts them to sleep, while others are served.

An engine is built in a thread that uses only idle cores, one at a time, and closed in another thread, because to free
memory takes time. What follows is passed back to the loop thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

from quire.engine_process.pacing.loading_threads import LoadingThreads
from quire.engine_process.wire import model_changes as wire
from quire.engine_process.wire.error_info import to_error_info
from quire.engine_process.wire.message import WireMessage
from quire.engine_process.wire.model_changes import LoadModel, UnloadModel, progress_reporter
from quire.engine_process.wire.protocol import CallFailed, UnloadDone
from quire.errors import BadRequest, ConfigError, NotFound
from quire.isolation.idle_thread import run_when_idle
from quire.records import Registry
from quire.settings.model_config import ModelConfig

if TYPE_CHECKING:
    from quire.engine_process.step_loop import EngineProtocol, StepLoop

log = logging.getLogger("quire.engine_process")


class LoadEnded(BadRequest):
    """A model was unloaded while it was being loaded, or the process ends."""


class EngineBuilderProtocol(Protocol):
    """Builds and closes engines; `quire.engine_process.engine_builder.EngineBuilder` implements it."""

    def build(
        self,
        config: ModelConfig,
        registry: Registry,
        num_left: int,
        on_progress: Callable[[float], None] | None = None,
    ) -> EngineProtocol:
        """An engine. num_left: models, this one included, that share the free memory. Raises StartupError.

        on_progress: gets the fraction of the weights that is loaded; what it raises ends the load.
        """
        ...

    def close(self, engine: Any) -> None:
        """Close an engine that takes no more requests, and free its memory."""
        ...

    def can_free_caches(self, config: ModelConfig) -> bool:
        """Whether the weights of a model can stay while its KV cache is freed."""
        ...

    def free_caches(self, config: ModelConfig, engine: Any) -> bool:
        """Free the KV cache of an engine without requests; False: it is not possible."""
        ...

    def restore_caches(self, config: ModelConfig, engine: Any) -> None:
        """Reserve the KV cache again; raises ConfigError if too little memory is left."""
        ...

    def free_memory(self) -> None:
        """Return the memory of closed engines to the system."""
        ...

    def memory_limit(self) -> int:
        """Bytes that all models together may take; 0 = not known."""
        ...

    def log_memory(self) -> None:
        """Log the memory that each model has reserved."""
        ...


def check_names(names: Iterable[str], engines: Iterable[EngineProtocol]) -> None:
    """Raise ConfigError if a model has one of these names."""
    taken = {name for engine in engines for name in (engine.info.name, *engine.info.aliases)}
    for name in names:
        if name in taken:
            raise ConfigError(f"Two models are named {name!r}; give one of them another name (name=path).")


@dataclass(eq=False)
class _Load:
    """A load in progress. ended: it is to stop. unloads: calls that wait for that. wakes: the call that wakes it."""

    call_id: int
    config: ModelConfig
    wakes: wire.WakeModel | None = None
    ended: Event = field(default_factory=Event)
    unloads: list[int] = field(default_factory=list)


class ModelMessageHandler:
    """Changes models, and sends the answers; `handle` and `close` are for the loop thread.

    call_in_loop: passes a function to the loop thread. add: serves an engine; raises ConfigError if its name is taken.
    """

    def __init__(
        self,
        call_in_loop: Callable[[Callable[[], None]], None],
        send: Callable[[WireMessage], None],
        loop: StepLoop,
        registry: Registry,
        builder: EngineBuilderProtocol,
        add: Callable[[ModelConfig, EngineProtocol], None],
    ) -> None:
        self._call_in_loop, self._send, self._loop, self._add = call_in_loop, send, loop, add
        self._registry, self._builder = registry, builder
        self._loads: dict[str, _Load] = {}
        self._asleep: dict[str, EngineProtocol] = {}  # with weights and without a KV cache
        self._threads = LoadingThreads(loop.engines)
        self._loading = ThreadPoolExecutor(1, "model-loader", initializer=self._threads.begin)
        self._closing = ThreadPoolExecutor(1, "model-closer", initializer=run_when_idle)

    def handle(self, message: LoadModel | UnloadModel | wire.SleepModel | wire.WakeModel) -> None:
        """Begin to carry out a message; it is answered later."""
        match message:
            case LoadModel():
                self._start(_Load(message.call_id, message.config))
            case UnloadModel():
                self._unload(message)
            case wire.SleepModel():
                self._sleep(message)
            case wire.WakeModel():
                self._wake(message)

    @property
    def is_loading(self) -> bool:
        """Whether a model is being loaded, or is to be."""
        return bool(self._loads)

    def close(self) -> None:
        """End all loads, and wait for the threads."""
        for load in self._loads.values():
            load.ended.set()
        self._loading.shutdown(wait=True, cancel_futures=True)
        self._closing.shutdown(wait=True)
        for engine in self._asleep.values():
            engine.close()

    # --- loading -----------------------------------------------------------------------------------

    def _start(self, load: _Load) -> None:
        name, names = load.config.name, {load.config.name, *load.config.served_model_name}
        try:
            check_names(names, self._loop.engines.values())
            if name in self._loads:
                raise ConfigError(f"The model {name!r} is being loaded already.")
        except ConfigError as error:
            self._send(CallFailed(load.call_id, to_error_info(error)))
            return
        self._loads[name] = load
        self._loading.submit(self._build, load)

    def _build(self, load: _Load) -> None:
        """In the loading thread."""
        try:
            self._check(load)
            engine = self._builder.build(load.config, self._registry, 1, self._reporter(load))
            sleeps = load.wakes and not load.wakes.kv_cache and self._builder.free_caches(load.config, engine)
        except Exception as error:
            failure = error
            self._call_in_loop(lambda: self._failed(load, failure))
            return
        self._call_in_loop(lambda: self._built(load, engine, bool(sleeps)))

    def _reporter(self, load: _Load) -> Callable[[float], None]:
        report = progress_reporter(load.config.name, lambda made: self._call_in_loop(lambda: self._send(made)))

        def check_and_report(fraction: float) -> None:
            self._check(load)
            self._threads.adapt()
            report(fraction)

        return check_and_report

    def _check(self, load: _Load) -> None:
        if load.ended.is_set():
            raise LoadEnded(f"The model `{load.config.name}` was unloaded while it was being loaded.", "name")

    def _built(self, load: _Load, engine: EngineProtocol, sleeps: bool) -> None:
        try:
            self._check(load)
            self._add(load.config, engine)
        except (ConfigError, LoadEnded) as error:
            failure = error
            self._close_engine(engine, lambda: self._failed(load, failure))
            return
        name = load.config.name
        del self._loads[name]
        for adapter in load.wakes.adapters if load.wakes else ():
            engine.adapters.restore(adapter)
        if sleeps:
            self._loop.remove(name, partial(self._asleep.__setitem__, name))
        self._send(wire.ModelSleeps(load.call_id, True) if sleeps else wire.ModelLoaded(load.call_id, engine.info))

    def _failed(self, load: _Load, error: Exception) -> None:
        name = load.config.name
        del self._loads[name]
        if isinstance(error, LoadEnded):
            log.info("loading %s was ended", name)
        else:
            log.warning("%s could not be loaded: %s", name, error)
        self._send(CallFailed(load.call_id, to_error_info(error)))
        for call_id in load.unloads:
            self._send(UnloadDone(call_id))

    # --- unloading ---------------------------------------------------------------------------------

    def _unload(self, message: UnloadModel) -> None:
        name = message.model
        if load := self._loads.get(name):
            load.unloads.append(message.call_id)
            load.ended.set()
        elif name in self._asleep:
            self._removed(message, self._asleep.pop(name))
        elif name in self._loop.engines:
            self._loop.remove(name, lambda engine: self._removed(message, engine))
        else:
            error = NotFound(f"The model `{name}` is not loaded.")
            self._send(CallFailed(message.call_id, to_error_info(error)))

    def _removed(self, message: UnloadModel, engine: EngineProtocol) -> None:
        def done() -> None:
            log.info("%s is unloaded", message.model)
            self._send(UnloadDone(message.call_id))

        self._close_engine(engine, done)

    # --- sleeping ----------------------------------------------------------------------------------

    def _sleep(self, message: wire.SleepModel) -> None:
        name = message.config.name
        if name in self._loop.engines:
            self._loop.remove(name, lambda engine: self._put_to_sleep(message, engine))
        elif name in self._asleep and not message.keep_weights:
            self._close_engine(self._asleep.pop(name), lambda: self._answer_asleep(message))
        else:
            self._answer_asleep(message)

    def _put_to_sleep(self, message: wire.SleepModel, engine: EngineProtocol) -> None:
        """Free memory of an engine that the step loop has no more."""

        def freed(freeing: Future[bool]) -> None:
            if freeing.exception() is None and freeing.result():
                self._asleep[message.config.name] = engine
                self._answer_asleep(message)
            else:
                self._close_engine(engine, lambda: self._answer_asleep(message))

        if message.keep_weights:
            freeing = self._closing.submit(self._builder.free_caches, message.config, engine)
            freeing.add_done_callback(lambda done: self._call_in_loop(lambda: freed(done)))
        else:
            self._close_engine(engine, lambda: self._answer_asleep(message))

    def _answer_asleep(self, message: wire.SleepModel | wire.WakeModel) -> None:
        has_weights = message.config.name in self._asleep
        log.info("%s sleeps, %s", message.config.name, "with its weights" if has_weights else "without weights")
        self._send(wire.ModelSleeps(message.call_id, has_weights))

    def _wake(self, message: wire.WakeModel) -> None:
        config = message.config
        engine = self._asleep.get(config.name)
        if not message.kv_cache and (engine is not None or not self._builder.can_free_caches(config)):
            self._answer_asleep(message)  # it has its weights, or they come with its KV cache
        elif engine is None:
            self._start(_Load(message.call_id, config, message))
        else:
            try:
                self._builder.restore_caches(config, engine)
            except ConfigError as error:
                self._send(CallFailed(message.call_id, to_error_info(error)))
                return
            self._loop.add(self._asleep.pop(config.name), config.max_num_batched_tokens)
            log.info("%s is awake", config.name)
            self._send(wire.ModelLoaded(message.call_id, engine.info))

    def _close_engine(self, engine: EngineProtocol, then: Callable[[], None]) -> None:
        """Close an engine in a thread, and call `then` in the loop thread."""
        self._closing.submit(self._close_in_thread, engine)
        freeing = self._closing.submit(self._builder.free_memory)  # when nothing refers to the engine any more
        freeing.add_done_callback(lambda _: self._call_in_loop(then))

    def _close_in_thread(self, engine: EngineProtocol) -> None:
        try:
            self._registry.engine_stopping(engine.info)
            self._builder.close(engine)
        except Exception:  # the model is gone all the same
            log.exception("Closing %s failed", engine.info.name)

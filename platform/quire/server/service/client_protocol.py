"""The protocol of the engine client, as far as the server uses it.

`quire.engine_process.client.EngineClient` implements it; tests use a client without an engine process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from quire.errors import QuireError
from quire.settings.model_config import ModelConfig
from quire.types import EngineStats, ModelInfo, Request, SeqDelta
from quire.types.adapter_info import AdapterInfo


class AdapterClientProtocol(Protocol):
    """The adapters in the engine process; see `quire.engine_process.adapter_directory.AdapterDirectory`."""

    def all(self) -> Sequence[AdapterInfo]:
        """The adapters that are ready, loading or failed."""
        ...

    def get(self, name: str) -> AdapterInfo | None:
        """The adapter of this name, None if there is none."""
        ...

    async def settled(self, name: str) -> AdapterInfo | None:
        """The adapter of this name, ready or failed, as soon as its first load has ended; None if it is not known."""
        ...

    async def fetch(self) -> list[AdapterInfo]:
        """All adapters, with their current state."""
        ...

    async def load(self, adapter: AdapterInfo, *, replacing: bool = False, wait: bool = True) -> AdapterInfo:
        """Load an adapter; raises `BadRequest`. replacing: a loaded one of the same name. wait: until it is loaded."""
        ...

    async def unload(self, name: str) -> None:
        """Refuse new requests for an adapter; raises `NotFound`."""
        ...


class SleepProtocol(Protocol):
    """How a model sleeps; `quire.engine_process.engine_models.Sleep` implements it."""

    @property
    def level(self) -> int:
        """1: its weights are kept in host memory if they can; 2: they are freed."""
        ...

    @property
    def tags(self) -> Collection[str]:
        """The parts that sleep: weights, kv_cache."""
        ...

    @property
    def has_weights(self) -> bool:
        """Whether its weights are in memory all the same."""
        ...


class SleepersProtocol(Protocol):
    """Puts models to sleep and wakes them; see `quire.engine_process.engine_models.EngineModels`."""

    def sleep_of(self, name: str) -> SleepProtocol | None:
        """How a model sleeps; None: it is awake."""
        ...

    async def sleep(self, model: str, level: int = 1, abort: bool = True) -> None:
        """Refuse requests for a model, and free its memory when its requests have ended. abort: end them."""
        ...

    async def wake(self, model: str, tags: Collection[str] = ...) -> None:
        """Restore these parts of a model, all by default."""
        ...


class ClientProtocol(Protocol):
    """Runs requests on the models of the engine process."""

    @property
    def adapters(self) -> AdapterClientProtocol:
        """The adapters of all models."""
        ...

    @property
    def sleepers(self) -> SleepersProtocol:
        """The models that sleep."""
        ...

    @property
    def unavailable(self) -> str | None:
        """Why requests are not accepted now, as a sentence; None if they are accepted."""
        ...

    @property
    def memory_limit(self) -> int:
        """Bytes that all models together may take in an engine process; 0 = not known."""
        ...

    def register_adapter(self, info: AdapterInfo) -> None:
        """Have an adapter that was loaded before read when a request needs it."""
        ...

    def models(self) -> Sequence[ModelInfo]:
        """The models that are loaded."""
        ...

    async def load(self, config: ModelConfig) -> ModelInfo:
        """Load one more model while others are served; raises `StartupError`, and `BadRequest` if it is unloaded."""
        ...

    async def unload(self, model: str, force: bool = False) -> None:
        """Unload a model when its requests have ended, or end its load. force: end its requests. Raises `NotFound`."""
        ...

    def load_progress(self, model: str) -> float:
        """The fraction of the weights of a model that is loaded while it is being loaded; 0 before and after."""
        ...

    def on_model_lost(self, on_lost: Callable[[str, QuireError], None]) -> None:
        """Have `on_lost` called with the name of a model of `load` that could not be loaded again, and the error."""
        ...

    async def run(self, model: str, requests: Sequence[Request], take: Callable[[SeqDelta], None]) -> None:
        """Run the requests of one HTTP request until every seq has ended; `take` is called with each delta.

        Raises `BadRequest` or `Overloaded` before the first delta, `EngineDied` at any time, and what `take` raises.
        The first error ends all requests; so does a cancellation.
        """
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop one seq of a request, or all of them; unknown ids are ignored."""
        ...

    async def stats(self) -> Sequence[EngineStats]:
        """The statistics of every model."""
        ...

    async def stats_and_plugin_calls(self) -> tuple[Sequence[EngineStats], Sequence[Mapping[str, Any]]]:
        """The statistics of every model, and of plugin calls in the engine process: plugin, calls, errors, seconds."""
        ...

    async def close(self, drain_s: float = 0.0) -> None:
        """Wait up to `drain_s` for running requests, then end the engine process."""
        ...

"""What the routes of plugins may do to the models of a running server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol


class ModelControl(Protocol):
    """Loads, unloads, names, puts to sleep and wakes models, as the routes of docs/apis/models.md do.

    It asks for no admin key: a plugin checks who may call its own routes. Everything raises `BadRequest` on a server
    whose requests may not change models, and is for the server's event loop.
    """

    def states(self) -> Mapping[str, str]:
        """The state by name of every model that the sender of the current request may use: unloaded, loading, ready,
        sleeping, draining or failed."""
        ...

    async def load(self, name: str, model: str, settings: Mapping[str, Any] | None = None, wait: bool = True) -> object:
        """Load a model; wait: until requests can use it. Raises what loading raises."""
        ...

    async def unload(self, name: str, force: bool = False) -> str:
        """Unload a model when its requests have ended; force: end them. Returns its name. Raises `NotFound`."""
        ...

    async def sleep(self, model: str | None = None, level: int = 1, mode: str = "abort") -> None:
        """Free the KV cache of a model, at level 2 its weights too; None: of all models. mode: abort or wait."""
        ...

    async def wake(self, model: str | None = None, tags: Collection[str] | None = None) -> bool:
        """Restore a model, or parts of it (weights, kv_cache); returns whether all of it is awake."""
        ...

    def is_sleeping(self, model: str | None = None) -> bool:
        """Whether a model sleeps; None: whether all do."""
        ...

    def alias_weights(self) -> Mapping[str, Mapping[str, float]]:
        """The aliases, and the weight of each of their models."""
        ...

    def set_alias(self, alias: str, model: str | None = None, models: Mapping[str, float] | None = None) -> object:
        """Let a name stand for a model, or for several by weight, from the next request on."""
        ...

    def remove_alias(self, alias: str) -> None:
        """Let a name stand for nothing. Raises `NotFound`."""
        ...

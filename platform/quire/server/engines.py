"""What the server needs of the client that talks to the engines, and nothing more.

`quire.host.client.Client` is one; a test's in-process client is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from quire.adapter_info import AdapterInfo
from quire.types import Delta, EngineStats, ModelInfo, Request


class AdapterClient(Protocol):
    """The adapters of models that live elsewhere (`quire.host.adapter_table.AdapterTable`)."""

    def all(self) -> Sequence[AdapterInfo]:
        """Those that are ready, loading or failed."""
        ...

    def get(self, name: str) -> AdapterInfo | None:
        """The adapter of this name."""
        ...

    async def look(self) -> list[AdapterInfo]:
        """All there are, as they stand now."""
        ...

    async def load(self, adapter: AdapterInfo, *, replacing: bool = False, wait: bool = True) -> AdapterInfo:
        """Load an adapter; raises BadRequest."""
        ...

    async def unload(self, name: str) -> None:
        """Let no request name an adapter any more; raises NotFound."""
        ...


class Client(Protocol):
    """Runs requests on models that live elsewhere."""

    @property
    def adapters(self) -> AdapterClient:
        """The adapters of the models."""
        ...

    @property
    def unavailable(self) -> str | None:
        """Why requests are not accepted now, in a sentence: the host is dead, loading or frozen; None if they are."""
        ...

    def models(self) -> Sequence[ModelInfo]:
        """The loaded models."""
        ...

    async def run(self, model: str, requests: Sequence[Request], take: Callable[[Delta], None]) -> None:
        """Run requests that belong together until every seq has ended; `take` gets deltas as steps give them.

        Raises a `QuireError`: `BadRequest` or `Overloaded` before the first delta, `HostDied` at any time; and what
        `take` raises. The first error of one ends them all, and so does cancelling it.
        """
        ...

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop one seq of a request, or all; unknown ids are ignored."""
        ...

    async def stats(self) -> Sequence[EngineStats]:
        """Figures of every model."""
        ...

    async def figures(self) -> tuple[Sequence[EngineStats], Sequence[Mapping[str, Any]]]:
        """The same, and rows of plugin, calls, errors and seconds, counted where the models run."""
        ...

    async def close(self, drain_s: float = 0.0) -> None:
        """Let go of the models."""
        ...

"""Models of all replicas that sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import Any

from quire.engine_process.client import EngineClient
from quire.engine_process.engine_models import SLEEP_TAGS, Sleep
from quire.errors import NotFound


class ReplicatedSleepers:
    """Puts models to sleep on every replica, and wakes them."""

    def __init__(self, clients: Sequence[EngineClient]) -> None:
        self._clients = clients

    def sleep_of(self, name: str) -> Sleep | None:
        """How a model sleeps on one of the replicas; None: it is awake on all."""
        return next((sleep for client in self._clients if (sleep := client.served.sleep_of(name)) is not None), None)

    async def sleep(self, model: str, level: int = 1, abort: bool = True) -> None:
        """Put a model to sleep on every replica that has it, as `EngineModels.sleep` does."""
        await self._on_all(client.served.sleep(model, level, abort) for client in self._having(model))

    async def wake(self, model: str, tags: Collection[str] = SLEEP_TAGS) -> None:
        """Wake a model on every replica. If it cannot wake on one, it sleeps on, and the error is raised."""
        await self._on_all(client.served.wake(model, tags) for client in self._having(model))

    def _having(self, model: str) -> list[EngineClient]:
        """The replicas that have a model; raises NotFound if none has it."""
        found, missing = [], NotFound(f"The model `{model}` does not exist.", "model")
        for client in self._clients:
            try:
                client.served.name_of(model)
                found.append(client)
            except NotFound as error:
                missing = error
        if not found:
            raise missing
        return found

    @staticmethod
    async def _on_all(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

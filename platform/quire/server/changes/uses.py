"""Counts the requests that have found their model and have not been sent to its engine.

A model that is unloaded waits for them: each of them found it before it took no more requests. From the begin of its
response on, the engine's own count of running requests has a request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import quote

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Scope, Send

MODEL_USE = "quire.model_use"
"""Key in the scope of an HTTP request: its `ModelUse`."""

MODEL_HEADER = "X-Quire-Model"
"""Header of responses to requests that named an alias: the name of the model that answered, percent-encoded."""


class ModelUses:
    """The number of requests by model. For one event loop."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._ended = asyncio.Event()

    @contextmanager
    def using(self, model: str) -> Iterator[None]:
        """While a request prepares its work for a model."""
        self.begin(model)
        try:
            yield
        finally:
            self.end(model)

    def begin(self, model: str) -> None:
        self._counts[model] += 1

    def end(self, model: str) -> None:
        self._counts[model] -= 1
        if not self._counts[model]:
            del self._counts[model]
            self._ended.set()

    async def ended(self, model: str) -> None:
        """Wait until no request uses a model."""
        while model in self._counts:
            self._ended.clear()
            await self._ended.wait()


class ModelUse:
    """The models that one HTTP request has found."""

    def __init__(self, uses: ModelUses) -> None:
        self._uses = uses
        self._models: list[str] = []
        self._answering: str | None = None

    def begin(self, model: str, by_alias: bool) -> None:
        """The request has found a model. by_alias: its response names the model in a header."""
        self._uses.begin(model)
        self._models.append(model)
        if by_alias:
            self._answering = model

    def end(self) -> None:
        """The request is in the engine, or it has ended. Further calls do nothing."""
        models, self._models = self._models, []
        for model in models:
            self._uses.end(model)

    def watch(self, send: Send) -> Send:
        """A `send` that ends the use when the response begins."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.end()
                if self._answering is not None:
                    MutableHeaders(scope=message)[MODEL_HEADER] = quote(self._answering, safe="/:@ ")
            await send(message)

        return watched


def use_of(scope: Scope | MutableMapping[str, Any]) -> ModelUse | None:
    """The use of a request; None for a WebSocket, which outlives many requests."""
    return cast("ModelUse | None", scope.get(MODEL_USE))


async def first_of(*waits: Coroutine[Any, Any, object]) -> None:
    """Return when one of these has ended; the others are canceled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()

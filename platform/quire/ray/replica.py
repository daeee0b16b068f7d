"""A replica: the application of `platform serve`, and the engine process that it starts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import Any

from starlette.types import Message, Receive

from quire.log_format import log_to_stderr
from quire.ray.calls import HttpCall, Messages, WholeAnswer
from quire.ray.settings import read_settings
from quire.ray.shared_adapters import SharedAdapters
from quire.ray.stored_adapters import StoredAdapter, StoredAdapters, application_name, replica_id
from quire.server.process.serve import load_app
from quire.server.process.start import build_client, process_settings

log = logging.getLogger("quire.server")

LOST = 1
"""Exit status of a replica whose engine process has ended."""


class Replica:
    """Answers requests. When its engine process ends, it ends too, so that Ray starts another at once."""

    async def __init__(self, serve: Mapping[str, Any]) -> None:  # type: ignore[misc]
        """serve: settings of `platform serve`. Raises ConfigError, CheckpointError or PluginError."""
        log_to_stderr()
        served = await asyncio.to_thread(read_settings, serve)
        # Ray restarts a replica, and sends requests to the others meanwhile
        config = replace(served.config, max_restarts=0)
        settings = process_settings(
            served.models, config, served.registry, plugins=served.plugins, enable_lora=served.enable_lora
        )
        settings = replace(settings, kill_frozen=True)
        self._client = build_client(served.models, settings, config, served.registry)
        self._client.launch()
        self._app = await load_app(self._client, served.models, config, served.registry, defaults=served.defaults)
        self._open = contextlib.AsyncExitStack()
        await self._open.enter_async_context(self._app.router.lifespan_context(self._app))
        self._id = replica_id()
        self._adapters = SharedAdapters(self._app.state.service.adapters, StoredAdapters(application_name()))
        await self._adapters.follow()
        self._tasks = [asyncio.create_task(work) for work in (self._end_with_engine(), self._adapters.keep_following())]

    async def call(self, request: HttpCall) -> AsyncGenerator[Messages, None]:
        """The messages of the answer, as they come. Closing the generator cancels the request."""
        waiting: asyncio.Queue[Message | None] = asyncio.Queue()

        async def send(message: Message) -> None:
            waiting.put_nowait(message)

        receive, disconnect = _receiver(request.body)
        answering = asyncio.create_task(self._app(request.scope(), receive, send))
        answering.add_done_callback(lambda _: waiting.put_nowait(None))
        try:
            while True:
                messages = [await waiting.get()]
                while not waiting.empty():
                    messages.append(waiting.get_nowait())
                if found := [message for message in messages if message is not None]:
                    yield found
                if messages[-1] is None:
                    break
            await answering
        finally:
            disconnect.set()
            answering.cancel()

    async def answer(self, request: HttpCall) -> WholeAnswer:
        """What the application answers, when it is complete."""
        found = [message async for messages in self.call(request) for message in messages]
        return WholeAnswer.from_messages(found, self._id)

    async def load_adapter(self, request: HttpCall, adapter: StoredAdapter) -> WholeAnswer:
        """The answer to a request that loads an adapter on all replicas."""
        return await self._adapters.load(adapter, lambda: self.answer(request))

    async def unload_adapter(self, request: HttpCall, name: str) -> WholeAnswer:
        """The answer to one that unloads it."""
        return await self._adapters.unload(name, lambda: self.answer(request))

    async def follow_stored_adapters(self) -> None:
        """Have the adapters that the cluster remembers, and no others that requests have loaded."""
        await self._adapters.follow()

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `quire.ray.autoscaling` reads: use of the fullest KV cache, and sequences that wait."""
        stats = await self._client.stats()
        used = [one.num_pages_used / one.num_pages for one in stats if one.num_pages]
        return {
            "kv_cache_usage": max(used, default=0.0),
            "num_requests_waiting": float(sum(one.num_waiting for one in stats)),
        }

    async def process_ids(self) -> tuple[int, int | None]:
        """Of the replica and of its engine process."""
        return os.getpid(), getattr(self._client, "engine_pid", None)

    async def _end_with_engine(self) -> None:
        await self._client.failed()
        log.error("the replica ends: %s", self._client.unavailable)
        os._exit(LOST)

    async def __del__(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._open.aclose()
        await self._client.close()


def _receiver(body: bytes) -> tuple[Receive, asyncio.Event]:
    """What the application receives: the body, then nothing until the event says that the client has gone."""
    parts = [body]
    gone = asyncio.Event()

    async def receive() -> Message:
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive, gone

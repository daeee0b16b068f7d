"""The API process's client of several engine processes, each of which has every model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from quire.engine_process.client import EngineClient
from quire.engine_process.engine_models import OnLost
from quire.engine_process.inflight import InFlightRequest, RequestBatch
from quire.engine_process.replicas.adapters import ReplicatedAdapters
from quire.engine_process.replicas.share import divide
from quire.engine_process.replicas.sleepers import ReplicatedSleepers
from quire.engine_process.settings import ClientEvents, EngineProcessSettings
from quire.engine_process.supervisor import SHUTDOWN_TIMEOUT_S
from quire.engine_process.wire.spawn import SpawnedProcess
from quire.errors import BadRequest, EngineDied, NotFound, Overloaded, QuireError
from quire.records import RoutingPolicyImpl
from quire.routing.router import Placement, RequestRouter
from quire.settings.model_config import ModelConfig
from quire.types import EngineStats, ModelInfo, Request, SeqDelta
from quire.types.adapter_info import AdapterInfo

FROZEN_AFTER_S = 3.0
"""A replica that is silent for so long and does nothing is killed: the others take its requests meanwhile."""


@dataclass(slots=True)
class PlacedRequest:
    """A request in flight on one replica."""

    client: EngineClient
    entry: InFlightRequest
    placement: Placement

    def on_delta(self, delta: SeqDelta, router: RequestRouter) -> None:
        """Tell the router when the request begins and ends."""
        if self.placement.waiting:
            router.began(self.placement)
        if delta.finish_reason is not None and self.entry.open == {delta.index}:
            router.ended(self.placement)


class ReplicatedClient:
    """Runs requests on the models of several engine processes. Has the methods of `EngineClient`."""

    def __init__(
        self, models: Sequence[ModelConfig], settings: EngineProcessSettings, count: int, policy: RoutingPolicyImpl
    ) -> None:
        """count: of replicas. Call `launch`, and later, on an event loop, `ready`."""
        from quire.engine.memory.system_memory import free_bytes

        self._settings = settings
        self._router = RequestRouter(count, policy)
        self.replicas = [
            EngineClient(
                models,
                replace(
                    settings,
                    adapters=settings.adapters[share.index :: count],
                    frozen_after_s=FROZEN_AFTER_S,
                    kill_frozen=True,
                    share=share,
                    memory=settings.memory.divided(count),
                ),
                ClientEvents(
                    partial(self._on_ready, share.index),
                    partial(self._router.restarted, share.index),
                    partial(self._on_adapter_loaded, share.index),
                ),
            )
            for share in divide(count, free_bytes(), os.environ)
        ]
        self.adapters = ReplicatedAdapters(self.replicas, self._router)
        self.sleepers = ReplicatedSleepers(self.replicas)
        self._closing = False

    def launch(self, spawned: SpawnedProcess | None = None) -> None:
        """Have the engine processes begin to load; the first is `spawned`, if given. Needs no event loop."""
        for client in self.replicas:
            client.launch(spawned)
            spawned = None

    async def ready(self) -> None:
        """Wait until every replica has loaded the models; raises what loading raises."""
        try:
            async with asyncio.TaskGroup() as loading:
                for client in self.replicas:
                    loading.create_task(client.ready())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    @property
    def alive(self) -> bool:
        """Whether requests are accepted now."""
        return self.unavailable is None

    @property
    def unavailable(self) -> str | None:
        """The reason, as a sentence, why requests are not accepted now; None if a replica accepts them."""
        if self._closing:
            return "The server is shutting down."
        reasons = [client.unavailable for client in self.replicas]
        return None if None in reasons else reasons[0]

    @property
    def memory_limit(self) -> int:
        """Bytes that all models together may take on each replica; 0 = not known."""
        return min(client.memory_limit for client in self.replicas)

    def register_adapter(self, info: AdapterInfo) -> None:
        """Have every replica read an adapter when a request needs it."""
        self.replicas[0].register_adapter(info)
        self.adapters.on_loaded(0, info)

    async def failed(self) -> None:
        """Wait until every engine process has ended too often and is not restarted."""
        for client in self.replicas:
            await client.failed()

    def kill(self) -> None:
        """Kill the engine processes."""
        for client in self.replicas:
            client.kill()

    def models(self) -> list[ModelInfo]:
        """The models that a replica has loaded."""
        found: dict[str, ModelInfo] = {}
        for client in self.replicas:
            for info in client.models():
                found.setdefault(info.name, info)
        return list(found.values())

    async def run(self, model: str, requests: Sequence[Request], on_delta: Callable[[SeqDelta], None]) -> None:
        """Run the requests of one call, each on the replica that the router chooses; see `EngineClient.run`."""
        await self._wait_ready()
        name = self._name_of(model)
        with ExitStack() as stack:
            for client in self.replicas:
                client.served.check_serves(name)
                stack.enter_context(client.served.running(name))
            await self._run(name, requests, on_delta)

    async def _run(self, name: str, requests: Sequence[Request], on_delta: Callable[[SeqDelta], None]) -> None:
        placed: dict[str, PlacedRequest] = {}

        def take(delta: SeqDelta) -> None:
            placed[delta.request_id].on_delta(delta, self._router)
            on_delta(delta)

        batch = RequestBatch(take)
        max_open = max(1, sum(client.max_in_flight(name) for client in self._serving(name)))
        try:
            for request in requests:
                await batch.wait_until(max_open - 1)
                placed[request.id] = self._begin(name, request, batch)
            await batch.wait_until(0)
        finally:
            for one in placed.values():
                self._router.ended(one.placement)
                one.client.end(one.entry)
            placed.clear()  # they refer to the batch, and it to them: no work for the garbage collector
            batch.entries.clear()

    def _begin(self, name: str, request: Request, batch: RequestBatch) -> PlacedRequest:
        if any(client.requests.get(request.id) is not None for client in self.replicas):
            raise BadRequest(f"A request with the id {request.id!r} is already in flight.", "request_id")
        serving = self._serving(name)
        mask = sum(1 << number for number, client in enumerate(self.replicas) if client in serving)
        if not mask:
            raise EngineDied("No process that runs the model is running; try again later.")
        placement = self._router.place(name, request, mask)
        client = self.replicas[placement.replica]
        try:
            return PlacedRequest(client, client.begin(name, request, batch), placement)
        except BaseException:
            self._router.ended(placement)
            entry = client.requests.get(request.id)
            if entry is not None:
                client.end(entry)
            raise

    def _serving(self, name: str) -> list[EngineClient]:
        """The replicas that take requests for a model now."""
        return [client for client in self.replicas if client.alive and name in client.served.infos]

    def _name_of(self, model: str) -> str:
        for client in self.replicas[:-1]:
            try:
                return client.served.name_of(model)
            except NotFound:
                continue
        return self.replicas[-1].served.name_of(model)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop one seq of a request, or all; each gets a last delta with reason "abort". Unknown ids are ignored."""
        for client in self.replicas:
            client.abort(request_id, index)

    async def stats(self) -> list[EngineStats]:
        """Statistics of every model on every replica."""
        return (await self.stats_and_plugin_calls())[0]

    async def stats_and_plugin_calls(self) -> tuple[list[EngineStats], list[dict[str, Any]]]:
        """Statistics of every model on every replica that runs, and calls, errors and seconds per plugin."""
        replies = await asyncio.gather(*(client.stats_and_plugin_calls() for client in self.replicas))
        stats = [replace(one, engine=number) for number, (engines, _) in enumerate(replies) for one in engines]
        return stats, [row for _, rows in replies for row in rows]

    # --- models that come and go -------------------------------------------------------------------

    async def load(self, config: ModelConfig) -> ModelInfo:
        """Load one more model on every replica; if one cannot, on none. Raises what `EngineClient.load` raises."""
        clients = [client for client in self.replicas if client.state != "failed"] or self.replicas
        outcomes = await asyncio.gather(*(client.load(config) for client in clients), return_exceptions=True)
        infos = [outcome for outcome in outcomes if isinstance(outcome, ModelInfo)]
        for error in outcomes:
            if isinstance(error, BaseException):
                loaded = [client for client, done in zip(clients, outcomes, strict=True) if isinstance(done, ModelInfo)]
                await asyncio.gather(*(client.unload(config.name) for client in loaded), return_exceptions=True)
                raise error
        self._add_model(infos[0])
        return infos[0]

    async def unload(self, model: str, force: bool = False) -> None:
        """Refuse new requests for a model at once, and unload it everywhere when its requests have ended."""
        outcomes = await asyncio.gather(*(c.unload(model, force) for c in self.replicas), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if len(errors) == len(outcomes):
            raise errors[0]
        for error in errors:
            if not isinstance(error, QuireError):
                raise error
        names = {info.name for info in self.models()}
        for name in [name for name in self._router.models if name not in names]:
            self._router.remove_model(name)
            self.adapters.forget_model(name)

    def load_progress(self, model: str) -> float:
        """The fraction of the weights of a model that is loaded, on all replicas together; 0 before and after."""
        parts = [1.0 if model in c.served.infos else c.load_progress(model) for c in self.replicas]
        return 0.0 if min(parts) == 1.0 else sum(parts) / len(parts)

    def on_model_lost(self, on_lost: OnLost) -> None:
        """Have `on_lost` called for each model of `load` that no replica has any more."""

        def lost(name: str, error: QuireError) -> None:
            if name not in {info.name for info in self.models()}:
                on_lost(name, error)

        for client in self.replicas:
            client.on_model_lost(lost)

    async def close(self, drain_s: float = 0.0, shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Refuse new requests, wait up to `drain_s` for running ones, fail the rest, and end the engine processes."""
        self._closing = True
        await asyncio.gather(*(client.close(drain_s, shutdown_timeout_s) for client in self.replicas))

    async def _wait_ready(self) -> None:
        if self._closing:
            raise Overloaded("The server is shutting down; it takes no new requests.")
        if any(client.alive for client in self.replicas):
            return
        waits = [asyncio.ensure_future(client.wait_ready()) for client in self.replicas]
        try:
            for first in asyncio.as_completed(waits):
                try:
                    return await first
                except QuireError as error:
                    last = error
            raise last
        finally:
            for wait in waits:
                wait.cancel()

    def _on_ready(self, number: int) -> None:
        for info in self.replicas[number].models():
            self._add_model(info)
        self.adapters.on_ready(number)

    def _on_adapter_loaded(self, number: int, info: AdapterInfo) -> None:
        self.adapters.on_loaded(number, info)

    def _add_model(self, info: ModelInfo) -> None:
        if info.name not in self._router.models:
            config = next(c.served.config(info.name) for c in self.replicas if info.name in c.served.infos)
            cached = info.num_pages * info.page_size if config.enable_prefix_caching else 0
            self._router.add_model(info.name, cached, config.max_loras)

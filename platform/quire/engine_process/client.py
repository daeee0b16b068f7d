"""The API process's client of the engine process: runs requests, receives deltas, loads and unloads models.

Everything runs on one event loop. When the engine process ends, the supervisor starts a new one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from quire.engine_process.adapter_directory import AdapterDirectory
from quire.engine_process.engine_models import EngineModels, OnLost
from quire.engine_process.inflight import InFlightRequest, InFlightRequests, RequestBatch
from quire.engine_process.pending_calls import PendingCalls
from quire.engine_process.settings import NO_CALLBACKS, ClientEvents, EngineProcessSettings
from quire.engine_process.supervisor import SHUTDOWN_TIMEOUT_S, RestartPolicy, State, Supervisor
from quire.engine_process.wire.adapter_changes import AdapterChanged, AdapterListReply, AdapterLoaded, RegisterAdapter
from quire.engine_process.wire.error_info import from_error_info
from quire.engine_process.wire.model_changes import ModelLoaded, ModelProgress, ModelSleeps
from quire.engine_process.wire.process_source import ProcessSource
from quire.engine_process.wire.protocol import (
    Abort,
    CallFailed,
    FromEngine,
    GetStats,
    Ready,
    RequestRejected,
    Start,
    StatsReply,
    Submit,
    UnloadDone,
)
from quire.engine_process.wire.spawn import SpawnedProcess
from quire.errors import EngineDied, Overloaded
from quire.settings.model_config import ModelConfig
from quire.types import EngineStats, ModelInfo, Request, SeqDelta
from quire.types.adapter_info import AdapterInfo


class EngineClient:
    """Runs requests on the models of one engine process."""

    def __init__(
        self, models: Sequence[ModelConfig], settings: EngineProcessSettings, events: ClientEvents = NO_CALLBACKS
    ) -> None:
        """Use `EngineClient.start`; or call `launch`, and later, on an event loop, `ready`."""
        self._settings, self._events = settings, events
        self.requests = InFlightRequests()
        call = self._call_when_ready
        self.adapters = AdapterDirectory(call, settings.adapters, events.on_adapter_loaded)
        self.sleepers = self.served = EngineModels(models, call, self.requests.fail, self.adapters)
        self._closing, self.memory_limit = False, 0
        self._supervisor = Supervisor(
            self._first_message,
            self.requests.on_deltas,
            self._on_message,
            self._on_exit,
            self._on_frozen,
            RestartPolicy(settings.max_restarts),
            settings.processes or ProcessSource(settings.module),
            settings.engine_timeout_s,
            settings.frozen_after_s,
        )
        self._calls = PendingCalls(self._supervisor.send)

    @classmethod
    async def start(
        cls, models: Sequence[ModelConfig], plugins: Sequence[str] | None = None, **settings: Any
    ) -> EngineClient:
        """A client whose engine process has loaded `models`; `settings` are fields of `EngineProcessSettings`.

        Raises errors of the engine process here: ConfigError, CheckpointError, PluginError.
        """
        client = cls(models, EngineProcessSettings(plugins=plugins, **settings))
        await client.ready()
        return client

    def launch(self, spawned: SpawnedProcess | None = None) -> None:
        """Have the engine process begin to load: `spawned`, or a new one. Needs no event loop."""
        self._supervisor.launch(spawned)

    async def ready(self) -> None:
        """Wait until the models are loaded; raises as `start` does."""
        await self._supervisor.run()

    @property
    def state(self) -> State:
        """starting, ready, restarting, failed (ended too often and is not restarted) or closed."""
        return self._supervisor.state

    @property
    def alive(self) -> bool:
        """Whether requests are accepted now."""
        return self.unavailable is None

    @property
    def unavailable(self) -> str | None:
        """The reason, as a sentence, why requests are not accepted now; None if they are."""
        supervisor = self._supervisor
        if self._closing:
            return "The server is shutting down."
        if self.state == "ready":
            return f"The engine process has not answered for {s:.0f} s." if (s := supervisor.frozen_s) else None
        if self.state == "failed":
            return f"{supervisor.last_end} It ended too often and is not restarted."
        return f"{supervisor.last_end} The models are being loaded.".lstrip()

    async def failed(self) -> None:
        """Wait until the engine process has ended too often and is not restarted."""
        await self._supervisor.failed.wait()

    def kill(self) -> None:
        """Kill the engine process."""
        self._supervisor.kill()

    @property
    def engine_pid(self) -> int | None:
        """Process id of the engine process."""
        return self._supervisor.pid

    @property
    def num_in_flight(self) -> int:
        """Number of requests that have not ended."""
        return len(self.requests)

    def models(self) -> list[ModelInfo]:
        """The loaded models, in the order they were given; during a restart, those of the last engine process."""
        return list(self.served.infos.values())

    async def run(self, model: str, requests: Sequence[Request], on_delta: Callable[[SeqDelta], None]) -> None:
        """Run the requests of one call; returns when every seq has ended. Canceling this aborts them.

        model: a name or an alias. on_delta: called on the event loop for every delta, so it must be quick; an exception
        from it is raised here. Raises NotFound for an unknown model, ModelUnloaded for one that is being unloaded,
        BadRequest or Overloaded from the engine before the first delta, and EngineDied if the engine process ends or a
        restart takes too long. The first error ends all of the requests. A long list does not fill the engine's queue:
        only as many requests are in flight as keep the model busy.
        """
        await self.wait_ready()
        name = self.served.name_of(model)
        self.served.check_serves(name)
        with self.served.running(name):
            await self._run(name, requests, on_delta)

    async def _run(self, name: str, requests: Sequence[Request], on_delta: Callable[[SeqDelta], None]) -> None:
        batch, max_open = RequestBatch(on_delta), self.max_in_flight(name)
        try:
            for request in requests:
                await batch.wait_until(max_open - 1)
                self.begin(name, request, batch)
            await batch.wait_until(0)
        finally:
            for entry in batch.entries:
                self.end(entry)
            batch.entries.clear()  # they refer to the batch, and it to them: no work for the garbage collector

    def begin(self, name: str, request: Request, batch: RequestBatch) -> InFlightRequest:
        """Send a request of a batch to the engine process; `end` it. Raises EngineDied and BadRequest."""
        if self.state != "ready":
            raise EngineDied("The process that runs the models is not running; try again later.")
        entry = self.requests.begin(name, request, batch)
        self._supervisor.send(Submit.from_request(name, request))
        return entry

    def max_in_flight(self, name: str) -> int:
        """Per caller: as many requests as the model computes at once, and the same number waiting."""
        return min(2 * (config := self.served.config(name)).max_num_seqs, config.max_num_queued_reqs)

    def end(self, entry: InFlightRequest) -> None:
        """Forget a request; abort it if it is still running."""
        self.requests.end(entry)
        if entry.open and self.state == "ready":
            self._supervisor.send(Abort(entry.model, entry.request_id))

    def register_adapter(self, info: AdapterInfo) -> None:
        """Have the engine process read an adapter, which another one has loaded, when a request needs it."""
        self.adapters.set(replace(info, revision=0))  # the process numbers its own
        self._supervisor.send(RegisterAdapter(info))

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop one seq of a request, or all; each gets a last delta with reason "abort". Unknown ids are ignored."""
        if (entry := self.requests.get(request_id)) is not None:
            self.requests.abort(entry, index)
            self._supervisor.send(Abort(entry.model, request_id, index))

    async def stats(self) -> list[EngineStats]:
        """Statistics of every model; empty while the engine process is not running."""
        return (await self.stats_and_plugin_calls())[0]

    async def stats_and_plugin_calls(self) -> tuple[list[EngineStats], list[dict[str, Any]]]:
        """Statistics of every model, and calls, errors and seconds per plugin; both empty while nothing runs."""
        if self.state != "ready":
            return [], []
        try:
            reply: StatsReply = await self._calls(GetStats)
        except EngineDied:
            return [], []
        return reply.engines, reply.plugins

    # --- models that come and go -------------------------------------------------------------------

    async def load(self, config: ModelConfig) -> ModelInfo:
        """Load one more model while the others run; raises what `start` raises, and BadRequest if it is unloaded."""
        return await self.served.load(config)

    async def unload(self, model: str, force: bool = False) -> None:
        """Refuse new requests for a model at once, and unload it when its requests have ended (see `EngineModels`)."""
        await self.served.unload(model, force)

    def load_progress(self, model: str) -> float:
        """The fraction of the weights of a model that is loaded while it is being loaded; 0 before and after."""
        return self.served.progress.get(model, 0.0)

    def on_model_lost(self, on_lost: OnLost) -> None:
        """Have `on_lost` called for each model of `load` that a new engine process cannot load again."""
        self.served.on_lost = on_lost

    async def close(self, drain_s: float = 0.0, shutdown_timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Refuse new requests, wait up to `drain_s` for running ones, fail the rest, and end the engine process.

        shutdown_timeout_s: how long the engine process may take to exit before it is killed.
        """
        self._closing = True
        if self.state == "ready":
            await self.requests.drained(drain_s)
        self.requests.fail(EngineDied("The server is shutting down."))
        self._calls.fail(EngineDied("The server is shutting down."))
        await self._supervisor.close(shutdown_timeout_s)

    async def wait_ready(self) -> None:
        """Wait a limited time for the engine process to take requests. Raises EngineDied, and Overloaded at the end."""
        if self._closing:
            raise Overloaded("The server is shutting down; it takes no new requests.")
        if self.state != "ready" and not await self._supervisor.ready(self._settings.wait_ready_s):
            raise EngineDied("The process that runs the models is not running; try again later.")
        if self._supervisor.frozen_s:
            raise EngineDied(f"{self.unavailable} Try again later.")

    async def _call_when_ready(self, message: Callable[[int], Any]) -> Any:
        await self.wait_ready()
        return await self._calls(message)

    def _first_message(self) -> Start:
        settings, (adapters, known) = self._settings, self.adapters.restart_state()
        return Start(
            models=self.served.awake,
            added=self.served.added,
            plugins=None if settings.plugins is None else list(settings.plugins),
            options={plugin: dict(values) for plugin, values in settings.options.items()},
            enable_lora=settings.enable_lora,
            plugin_max_faults=settings.plugin_max_faults,
            log_level=settings.log_level,
            log_format=settings.log_format,
            sys_path=list(sys.path),
            share=settings.share,
            kv_events=dict(settings.kv_events),
            memory=settings.memory,
            adapters=adapters,
            known_adapters=known,
        )

    def _on_message(self, message: FromEngine) -> None:
        match message:
            case RequestRejected(request_id, error):
                entry = self.requests.get(request_id)
                if entry is not None:
                    entry.open.clear()  # there is nothing to abort
                    entry.batch.fail(from_error_info(error))
            case Ready(models, adapters, failed, limit):
                self.memory_limit = limit
                self.adapters.ready(adapters, self.served.sleeping)
                self.served.restarted(models, {name: from_error_info(error) for name, error in failed.items()})
                self._events.on_ready()
            case ModelProgress(model, fraction):
                self.served.progress[model] = fraction
            case CallFailed(call_id, error):
                self._calls.answer(call_id, from_error_info(error))
            case AdapterLoaded(call_id):
                self.adapters.on_event(message)
                self._calls.answer(call_id, message)
            case AdapterChanged():
                self.adapters.on_event(message)
            case ModelLoaded() | ModelSleeps() | UnloadDone() | StatsReply() | AdapterListReply():
                self._calls.answer(message.call_id, message)

    def _on_exit(self, description: str) -> None:
        error = EngineDied(f"{description} The request was lost; the models are being loaded again.")
        self.requests.fail(error)
        self._calls.fail(error)
        self._events.on_lost()

    def _on_frozen(self) -> None:
        """Fail calls that a healthy process answers at once; loads and requests may still be answered."""
        if self._settings.kill_frozen:
            self._supervisor.kill(f"did not answer for {self._supervisor.frozen_s:.0f} s, did nothing and was killed")
        self._calls.fail(EngineDied(f"{self.unavailable} Try again later."), quick=True)

"""The API process's way to the models: requests go in, deltas come out, and a dead host is replaced.

All of it runs on one event loop. It knows neither HTTP nor text.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from quire.config import ModelConfig
from quire.errors import HostDied, NotFound, Overloaded
from quire.host.adapter_table import AdapterTable
from quire.host.calls import Calls
from quire.host.faults import error_of
from quire.host.flights import Flight, Flights, Party
from quire.host.protocol import (
    Abort,
    AdapterChanged,
    AdapterLoaded,
    Adapters,
    Ask,
    Failed,
    Figures,
    FromHost,
    Load,
    Loaded,
    Message,
    Ready,
    Refused,
    Start,
    Unload,
    Unloaded,
    submit,
)
from quire.host.settings import HostSettings
from quire.host.supervisor import GOODBYE_S, RestartPolicy, State, Supervisor
from quire.types import Delta, EngineStats, ModelInfo, Request


class Client:
    """Runs requests on the models of one host process."""

    def __init__(self, models: Sequence[ModelConfig], settings: HostSettings) -> None:
        """Use `Client.start`; or `launch` and then, on an event loop, `ready`."""
        self._settings = settings
        self._configs = list(models)
        self._infos: dict[str, ModelInfo] = {}
        self._flights = Flights()
        self._calls = Calls(self._send)
        self.adapters = AdapterTable(self._call_when_ready, settings.adapters)
        self._closing = False
        self._supervisor = Supervisor(
            self._first_message,
            self._flights.take,
            self._on_message,
            self._on_death,
            self._on_frozen,
            RestartPolicy(settings.max_restarts),
            settings.module,
            settings.engine_timeout_s,
        )

    @classmethod
    async def start(
        cls, models: Sequence[ModelConfig], plugins: Sequence[str] | None = None, **settings: Any
    ) -> Client:
        """A client whose host has loaded `models`; further `settings` are those of `HostSettings`.

        Raises what went wrong in the host as if it had been here: ConfigError, CheckpointError, PluginError.
        """
        client = cls(models, HostSettings(plugins=plugins, **settings))
        await client.ready()
        return client

    def launch(self) -> None:
        """Let the host begin to load. Needs no event loop yet, so that others can be busy meanwhile."""
        self._supervisor.launch()

    async def ready(self) -> None:
        """Return when the models are loaded; raises as `start` does."""
        await self._supervisor.run()

    @property
    def state(self) -> State:
        """starting, ready, restarting, failed (ended too often) or closed."""
        return self._supervisor.state

    @property
    def alive(self) -> bool:
        """Whether requests are accepted now."""
        return self.unavailable is None

    @property
    def unavailable(self) -> str | None:
        """Why requests are not accepted now, in a sentence; None if they are."""
        supervisor = self._supervisor
        if self._closing:
            return "The server is shutting down."
        if self.state == "ready":
            silent_s = supervisor.frozen_s
            return f"The engine process has not answered for {silent_s:.0f} s." if silent_s else None
        if self.state == "failed":
            return f"{supervisor.last_end} It ended too often and is not started again."
        return f"{supervisor.last_end} The models are being loaded.".lstrip()

    async def failed(self) -> None:
        """Return when the host has ended too often and is not started again."""
        await self._supervisor.failed.wait()

    def kill(self) -> None:
        """End the host at once."""
        self._supervisor.kill()

    @property
    def host_pid(self) -> int | None:
        """Process number of the host."""
        return self._supervisor.pid

    @property
    def num_in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._flights)

    def models(self) -> list[ModelInfo]:
        """The loaded models, in the order they were given. Those of the last host while none runs."""
        return list(self._infos.values())

    async def run(self, model: str, requests: Sequence[Request], take: Callable[[Delta], None]) -> None:
        """Run requests that belong together; returns when every seq of each has ended. Cancelling it aborts.

        model: a name or alias. take: gets the deltas as steps give them, between two turns of the event loop, so it
        must be quick; what it raises is raised here. Raises NotFound for another model, BadRequest or Overloaded from
        the engine before the first delta, HostDied when the host ends, or does not come back soon. The first error of
        one ends them all. As many are in flight at a time as keep the model busy: a long list does not fill its queue.
        """
        name = self._name_of(model)
        await self._wait_ready()
        party, most = Party(take), self._most_in_flight(name)
        try:
            for request in requests:
                await party.at_most(most - 1)
                if self.state != "ready":
                    raise HostDied("The process that runs the models is not running; try again later.")
                self._flights.begin(name, request, party)
                self._supervisor.send(submit(name, request))
            await party.at_most(0)
        finally:
            for flight in party.flights:
                self._end(flight)

    def _most_in_flight(self, name: str) -> int:
        """Requests of one caller: those that a model computes at once, and as many that wait to be next."""
        config = self._configs[list(self._infos).index(name)]
        return min(2 * config.max_num_seqs, config.max_num_queued_reqs)

    def _end(self, flight: Flight) -> None:
        """Nobody waits for it any more."""
        self._flights.end(flight)
        if flight.open and not isinstance(flight.party.error, HostDied):
            self._supervisor.send(Abort(flight.model, flight.request_id))

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop one seq of a request, or all; each gives a last delta that says "abort". Unknown ids are ignored."""
        flight = self._flights.get(request_id)
        if flight is None:
            return
        self._flights.stop(flight, index)
        self._supervisor.send(Abort(flight.model, request_id, index))

    async def stats(self) -> list[EngineStats]:
        """Figures of every model; none while the host is not running."""
        return (await self.figures())[0]

    async def figures(self) -> tuple[list[EngineStats], list[dict[str, Any]]]:
        """The same, and calls, errors and seconds per plugin, as counted in the host; none while it is not running."""
        if self.state != "ready":
            return [], []
        try:
            figures: Figures = await self._calls(Ask)
        except HostDied:
            return [], []
        return figures.engines, figures.plugins

    async def load(self, config: ModelConfig) -> ModelInfo:
        """Load one more model while the others go on; raises what `start` raises."""
        await self._wait_ready()
        info: ModelInfo = await self._calls(lambda number: Load(number, config))
        self._configs.append(config)
        self._infos[info.name] = info
        return info

    async def unload(self, model: str) -> None:
        """Let go of a model once its requests have ended; new ones are refused at once."""
        name = self._name_of(model)
        await self._wait_ready()
        position = list(self._infos).index(name)
        del self._infos[name]
        del self._configs[position]
        self.adapters.forget_model(name)
        await self._calls(lambda number: Unload(number, name))

    async def close(self, drain_s: float = 0.0, goodbye_s: float = GOODBYE_S) -> None:
        """Refuse new requests, wait up to `drain_s` for those in flight, end the rest, end the host in `goodbye_s`."""
        self._closing = True
        if self.state == "ready":
            await self._flights.drained(drain_s)
        self._flights.fail(HostDied("The server is shutting down."))
        self._calls.fail(HostDied("The server is shutting down."))
        await self._supervisor.close(goodbye_s)

    def _send(self, message: Message) -> None:
        self._supervisor.send(message)

    def _name_of(self, model: str) -> str:
        for info in self._infos.values():
            if model == info.name or model in info.aliases:
                return info.name
        raise NotFound(f"The model `{model}` does not exist.", "model")

    async def _wait_ready(self) -> None:
        if self._closing:
            raise Overloaded("The server is shutting down; it takes no new requests.")
        if self.state != "ready" and not await self._supervisor.ready(self._settings.wait_ready_s):
            raise HostDied("The process that runs the models is not running; try again later.")
        if self._supervisor.frozen_s:
            raise HostDied(f"{self.unavailable} Try again later.")

    async def _call_when_ready(self, message: Callable[[int], Any]) -> Any:
        await self._wait_ready()
        return await self._calls(message)

    def _first_message(self) -> Start:
        settings, (adapters, known) = self._settings, self.adapters.restarted()
        return Start(
            models=list(self._configs),
            plugins=None if settings.plugins is None else list(settings.plugins),
            options={plugin: dict(values) for plugin, values in settings.options.items()},
            enable_lora=settings.enable_lora,
            plugin_max_faults=settings.plugin_max_faults,
            log_level=settings.log_level,
            sys_path=list(sys.path),
            adapters=adapters,
            known_adapters=known,
        )

    def _on_message(self, message: FromHost) -> None:
        match message:
            case Refused(request_id, fault):
                flight = self._flights.get(request_id)
                if flight is not None:
                    flight.open.clear()  # there is nothing to abort
                    flight.party.fail(error_of(fault))
            case Ready(models, adapters):
                self._infos = {info.name: info for info in models}
                self.adapters.ready(adapters)
            case Loaded(call, info):
                self._calls.answer(call, info)
            case Unloaded(call):
                self._calls.answer(call, None)
            case Failed(call, fault):
                self._calls.answer(call, error_of(fault))
            case AdapterLoaded(call):
                self.adapters.heard(message)
                self._calls.answer(call, message)
            case AdapterChanged():
                self.adapters.heard(message)
            case Figures(call) | Adapters(call):
                self._calls.answer(call, message)

    def _on_death(self, how: str) -> None:
        error = HostDied(f"{how} The request was lost; the models are being loaded again.")
        self._flights.fail(error)
        self._calls.fail(error)

    def _on_frozen(self) -> None:
        """What a host that is well answers at once gets an error; loads and requests may still be answered."""
        self._calls.fail(HostDied(f"{self.unavailable} Try again later."), quick=True)

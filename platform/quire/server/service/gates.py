"""Runs the request gates of plugins, which admit, rewrite or refuse a request before it is tokenized.

Gates run in their own threads, in order of priority. A gate that raises or takes too long fails only that request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

from quire.errors import Overloaded
from quire.hooks.call_stats import call_plugin, plugin_fault
from quire.records import Context, GateRequest, Registry, RequestGate, RequestGateImpl, RequestRefused
from quire.server.http.errors import GateRefused
from quire.server.process.plugin_threads import PluginThreads, QueueFull

HOOK = "quire_request_gates"

MAX_WAITING = 256
"""Requests that may wait for a gate thread."""


@dataclass(frozen=True)
class _Gate:
    plugin: str
    admit: Callable[[GateRequest], GateRequest | RequestRefused]


@dataclass
class _GateRun:
    """One request on its way through the gates. current: the gate that runs now."""

    request: GateRequest
    current: _Gate | None = None


class Gates:
    """The gates of all plugins. threads: requests in gates at once. timeout_s: limit for all gates of one request.

    are_loaded: whether there is any gate; without one, callers need not call `admit`.
    """

    def __init__(self, registry: Registry, threads: int = 16, timeout_s: float = 10.0) -> None:
        records: list[RequestGate] = sorted(registry.all(HOOK), key=lambda record: record.priority)
        self.are_loaded = bool(records)
        self._registry = registry
        self._gates = [self._build(record) for record in records]
        self._threads = PluginThreads("gates", threads, MAX_WAITING)
        self._timeout_s = timeout_s

    def _build(self, record: RequestGate) -> _Gate:
        plugin = self._registry.plugin_of(HOOK, record.name)
        context = Context(options=self._registry.options.get(plugin, {}))
        gate: RequestGateImpl = call_plugin(self._registry, plugin, record.build, context)
        return _Gate(plugin, _checked(gate.admit))

    async def admit(self, route: str, model: str, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """The body after all gates.

        Raises `GateRefused`, `PluginFailed`, and `Overloaded` if no gate thread was free or a gate took too long.
        """
        request = GateRequest(route=route, model=model, body=body, headers=dict(headers))
        admitted = await self._run_in_thread(_GateRun(request))
        changed = dict(admitted.body)
        if admitted.model != model:
            changed["model"] = admitted.model
        return changed

    async def _run_in_thread(self, run: _GateRun) -> GateRequest:
        try:
            answer = self._threads.submit(partial(copy_context().run, self._run, run))
        except QueueFull:
            raise Overloaded("Too many requests wait for the request gates of plugins. Try again later.") from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), self._timeout_s)
        except TimeoutError:
            if run.current is None:
                raise Overloaded("The request gates of plugins are busy. Try again later.") from None
            late = f"its request gate took longer than {self._timeout_s:g} s (--gate-timeout-s)"
            fault = plugin_fault(self._registry, run.current.plugin, run.current.admit, late)
            raise Overloaded(f"{fault.message}. Try again later.") from None

    def _run(self, run: _GateRun) -> GateRequest:
        for gate in self._gates:
            run.current = gate
            answer = call_plugin(self._registry, gate.plugin, gate.admit, run.request)
            if isinstance(answer, RequestRefused):
                raise GateRefused(answer)
            run.request = answer
        return run.request


def _checked(admit: Callable[[GateRequest], object]) -> Callable[[GateRequest], GateRequest | RequestRefused]:
    """Wrap `admit` to raise TypeError if it returns neither a request nor a refusal."""

    @wraps(admit)
    def checked(request: GateRequest) -> GateRequest | RequestRefused:
        answer = admit(request)
        if isinstance(answer, RequestRefused) or (isinstance(answer, GateRequest) and isinstance(answer.body, Mapping)):
            return answer
        raise TypeError(f"its request gate gave {type(answer).__name__}, not a request or a refusal")

    return checked

"""Request gates: plugins that admit, rewrite or refuse a request before it is tokenized.

They run in threads of their own, in order of priority. A gate that raises, or takes too long, fails this request only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import Any

from quire.counting import call_plugin, plugin_fault
from quire.errors import Overloaded
from quire.records import Context, GateRequest, GatesRequests, Refused, Registry, RequestGate
from quire.server.errors import GateRefused
from quire.server.plugin_threads import Full, PluginThreads

HOOK = "quire_request_gates"

WAITING = 256
"""Requests that may wait for a thread."""


@dataclass(frozen=True)
class _Gate:
    plugin: str
    admit: Callable[[GateRequest], GateRequest | Refused]


@dataclass
class _Passage:
    """One request's way through the gates. at: the one that looks at it now."""

    request: GateRequest
    at: _Gate | None = None


class Gates:
    """The gates of all plugins, built once. threads: how many requests they look at at once; timeout_s: and how long
    at each."""

    def __init__(self, registry: Registry, threads: int = 16, timeout_s: float = 10.0) -> None:
        records: list[RequestGate] = sorted(registry.all(HOOK), key=lambda record: record.priority)
        self._registry = registry
        self._gates = [self._build(record) for record in records]
        self._threads = PluginThreads("gates", threads, WAITING)
        self._timeout_s = timeout_s

    def _build(self, record: RequestGate) -> _Gate:
        plugin = self._registry.plugin_of(HOOK, record.name)
        context = Context(options=self._registry.options.get(plugin, {}))
        gate: GatesRequests = call_plugin(self._registry, plugin, record.build, context)
        return _Gate(plugin, _checked(gate.admit))

    async def admit(self, route: str, model: str, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """The body as the gates leave it.

        Raises `GateRefused`, `PluginFailed`, and `Overloaded` where no gate had a thread for it, or one took too long.
        """
        if not self._gates:
            return body
        request = GateRequest(route=route, model=model, body=body, headers=dict(headers))
        admitted = await self._passed(_Passage(request))
        changed = dict(admitted.body)
        if admitted.model != model:
            changed["model"] = admitted.model
        return changed

    async def _passed(self, passage: _Passage) -> GateRequest:
        try:
            answer = self._threads.submit(lambda: self._run(passage))
        except Full:
            raise Overloaded(
                "The request gates of plugins have too many requests to look at. Try again later."
            ) from None
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), self._timeout_s)
        except TimeoutError:
            if passage.at is None:
                raise Overloaded("The request gates of plugins are busy. Try again later.") from None
            late = f"its request gate took longer than {self._timeout_s:g} s (--gate-timeout-s)"
            fault = plugin_fault(self._registry, passage.at.plugin, passage.at.admit, late)
            raise Overloaded(f"{fault.message}. Try again later.") from None

    def _run(self, passage: _Passage) -> GateRequest:
        for gate in self._gates:
            passage.at = gate
            answer = call_plugin(self._registry, gate.plugin, gate.admit, passage.request)
            if isinstance(answer, Refused):
                raise GateRefused(answer)
            passage.request = answer
        return passage.request


def _checked(admit: Callable[[GateRequest], object]) -> Callable[[GateRequest], GateRequest | Refused]:
    """The same function, which raises TypeError where it gives what is no answer."""

    @wraps(admit)
    def checked(request: GateRequest) -> GateRequest | Refused:
        answer = admit(request)
        if isinstance(answer, Refused) or (isinstance(answer, GateRequest) and isinstance(answer.body, Mapping)):
            return answer
        raise TypeError(f"its request gate gave {type(answer).__name__}, not a request or a refusal")

    return checked

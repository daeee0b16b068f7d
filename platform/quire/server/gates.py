"""Request gates: plugins that admit, rewrite or refuse a request before it is tokenized.

They run in a worker thread, in order of priority. A gate that raises fails this request only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quire.counting import call_plugin
from quire.errors import PluginFailed
from quire.records import Context, GateRequest, GatesRequests, Refused, Registry, RequestGate
from quire.server.errors import GateRefused

HOOK = "quire_request_gates"


@dataclass(frozen=True)
class _Gate:
    plugin: str
    gate: GatesRequests


class Gates:
    """The gates of all plugins, built once."""

    def __init__(self, registry: Registry) -> None:
        records: list[RequestGate] = sorted(registry.all(HOOK), key=lambda record: record.priority)
        self._registry = registry
        self._gates = [self._build(record) for record in records]

    def _build(self, record: RequestGate) -> _Gate:
        plugin = self._registry.plugin_of(HOOK, record.name)
        context = Context(options=self._registry.options.get(plugin, {}))
        return _Gate(plugin, call_plugin(self._registry, plugin, record.build, context))

    async def admit(self, route: str, model: str, body: dict[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        """The body as the gates leave it; raises `GateRefused` or `PluginFailed`."""
        if not self._gates:
            return body
        request = GateRequest(route=route, model=model, body=body, headers=dict(headers))
        admitted = await asyncio.to_thread(self._run, request)
        changed = dict(admitted.body)
        if admitted.model != model:
            changed["model"] = admitted.model
        return changed

    def _run(self, request: GateRequest) -> GateRequest:
        for gate in self._gates:
            answer = self._call(gate, request)
            if isinstance(answer, Refused):
                raise GateRefused(answer)
            if not isinstance(answer, GateRequest) or not isinstance(answer.body, Mapping):
                kind = type(answer).__name__
                raise PluginFailed(f"Plugin {gate.plugin!r} failed: its gate gave {kind}, not a request or a refusal.")
            request = answer
        return request

    def _call(self, gate: _Gate, request: GateRequest) -> Any:
        return call_plugin(self._registry, gate.plugin, gate.gate.admit, request)

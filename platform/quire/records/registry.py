"""The registry: every record of the loaded plugins, by hook and name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from quire.errors import PluginFailed
from quire.records.adapters import AdapterRuntime, AdapterSource
from quire.records.cli import Command, DemoModel, Option
from quire.records.grammar import GrammarBackend
from quire.records.logits import LogitsProcessor
from quire.records.models import Architecture, ArchitectureFallback, InputMapper
from quire.records.ops import OpImpl, Quantization
from quire.records.reasoning import ReasoningParser
from quire.records.replicas.executors import Executor
from quire.records.replicas.kv_events import KvEventPublisher
from quire.records.replicas.routing import RoutingPolicy
from quire.records.scheduling import SchedulerPolicy
from quire.records.server import MetricsExporter, RequestGate, Router
from quire.records.speculation import Drafter
from quire.records.speech import Transcriber
from quire.records.tools import ToolParser
from quire.types.kv_events import KvEvent

RECORDS: Mapping[str, type] = {
    "quire_architectures": Architecture,
    "quire_architecture_fallbacks": ArchitectureFallback,
    "quire_input_mappers": InputMapper,
    "quire_transcribers": Transcriber,
    "quire_ops": OpImpl,
    "quire_quantizations": Quantization,
    "quire_logits_processors": LogitsProcessor,
    "quire_grammar_backends": GrammarBackend,
    "quire_scheduler_policies": SchedulerPolicy,
    "quire_routing_policies": RoutingPolicy,
    "quire_executors": Executor,
    "quire_drafters": Drafter,
    "quire_adapter_runtimes": AdapterRuntime,
    "quire_tool_parsers": ToolParser,
    "quire_reasoning_parsers": ReasoningParser,
    "quire_request_gates": RequestGate,
    "quire_routers": Router,
    "quire_commands": Command,
    "quire_metrics_exporters": MetricsExporter,
    "quire_kv_event_publishers": KvEventPublisher,
    "quire_options": Option,
    "quire_demo_models": DemoModel,
}
"""Noun hook → the record type it yields."""


@dataclass(frozen=True)
class PluginInfo:
    """The distribution of a plugin, its hooks, and the names of its records by hook."""

    name: str
    module: str
    distribution: str | None
    version: str | None
    hooks: tuple[str, ...]
    records: Mapping[str, tuple[str, ...]]
    enabled: bool = True
    error: str | None = None


class PluginCallCounts(Protocol):
    """Wraps calls into plugin code, so that they are timed, counted and attributed to the plugin."""

    def call(self, plugin: str, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`; an exception is counted and raised as `PluginFailed`, which names the plugin."""
        ...

    def fault(self, plugin: str, function: Callable[..., Any] | str | None, error: BaseException | str) -> PluginFailed:
        """Count a fault that was detected outside `call`, and return the error that names the plugin."""
        ...

    def is_off(self, plugin: str, function: str) -> bool:
        """Whether a function is switched off after too many faults in a row."""
        ...

    def snapshot(self) -> list[dict[str, Any]]:
        """Rows of plugin, calls, errors, seconds, and the functions that are switched off."""
        ...


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Everything that the loaded plugins provide, frozen: by hook, name → record; and the plugin of each record.

    `origin[(hook, record name)]` is the plugin's name. Question and event hooks are plain callables, so that the
    engine does not depend on pluggy, and tests can build a registry directly. put_kv_event: queues a KV event of a
    model for the publisher, False if the queue is full; None = nothing is published.
    """

    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: Mapping[tuple[str, str], str] = field(default_factory=dict)
    plugins: tuple[PluginInfo, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    resolve_adapter: Callable[[str, str, Path], AdapterSource | None] = lambda *_: None
    engine_started: Callable[[Any], None] = lambda _: None
    engine_stopping: Callable[[Any], None] = lambda _: None
    request_finished: Callable[[Any], None] = lambda _: None
    usage_recorded: Callable[[Any], None] = lambda _: None
    counter: PluginCallCounts | None = None
    put_kv_event: Callable[[str, KvEvent], bool] | None = None

    def by_hook(self, hook: str) -> Mapping[str, Any]:
        """The records of a hook by name, in the order of loading."""
        return self.records.get(hook, {})

    def plugin_of(self, hook: str, name: str) -> str:
        """Name of the plugin that provides a record."""
        return self.origin.get((hook, name), "?")

    def input_mappers(self, architecture: str, fallback: str = "") -> list[Any]:
        """The input mappers of an architecture. fallback: the plugin whose fallback builds it, if one does."""
        mappers = self.by_hook("quire_input_mappers")
        own = [mapper for mapper in mappers.values() if mapper.architecture == architecture]
        of_plugin = [name for name in mappers if self.plugin_of("quire_input_mappers", name) == fallback]
        return [mappers[name] for name in of_plugin if mappers[name].architecture == "*"] or own

    def all(self, hook: str) -> Iterable[Any]:
        return self.by_hook(hook).values()

"""What the loaded plugins brought, by hook and name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from quire.errors import PluginFailed
from quire.records.adapters import AdapterRuntime, AdapterSource
from quire.records.edges import Command, DemoModel, MetricsExporter, Option, RequestGate, Router
from quire.records.models import Architecture, InputMapper
from quire.records.ops import OpImpl, Quantization
from quire.records.reasoning import ReasoningParser
from quire.records.sampling import GrammarBackend, LogitsProcessor
from quire.records.scheduling import SchedulerPolicy
from quire.records.speech import Transcriber
from quire.records.tools import ToolParser

RECORDS: Mapping[str, type] = {
    "quire_architectures": Architecture,
    "quire_input_mappers": InputMapper,
    "quire_transcribers": Transcriber,
    "quire_ops": OpImpl,
    "quire_quantizations": Quantization,
    "quire_logits_processors": LogitsProcessor,
    "quire_grammar_backends": GrammarBackend,
    "quire_scheduler_policies": SchedulerPolicy,
    "quire_adapter_runtimes": AdapterRuntime,
    "quire_tool_parsers": ToolParser,
    "quire_reasoning_parsers": ReasoningParser,
    "quire_request_gates": RequestGate,
    "quire_routers": Router,
    "quire_commands": Command,
    "quire_metrics_exporters": MetricsExporter,
    "quire_options": Option,
    "quire_demo_models": DemoModel,
}
"""Noun hook → the record type it yields."""


@dataclass(frozen=True)
class PluginInfo:
    """Where a plugin came from and what it brought."""

    name: str
    module: str
    distribution: str | None
    version: str | None
    hooks: tuple[str, ...]
    records: Mapping[str, tuple[str, ...]]
    enabled: bool = True
    error: str | None = None


class CountsCalls(Protocol):
    """Wraps calls into plugin code so that they are timed, counted and attributed."""

    def call(self, plugin: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call; an exception is counted and raised on as `PluginFailed` naming the plugin."""
        ...

    def fault(self, plugin: str, function: Callable[..., Any] | str | None, error: BaseException | str) -> PluginFailed:
        """Count a fault that was noticed otherwise, and give the error that names the plugin."""
        ...

    def is_off(self, plugin: str, function: str) -> bool:
        """Whether a function is not called now because it only failed."""
        ...

    def snapshot(self) -> list[dict[str, Any]]:
        """Rows of plugin, calls, errors, seconds, and the functions that are switched off."""
        ...


@dataclass(frozen=True, kw_only=True)
class Registry:
    """Everything the loaded plugins brought, frozen: name → record per kind, and who brought it.

    `origin[(hook, record name)]` is the plugin's name. Questions and events are plain callables,
    so that the engine needs no pluggy and a test builds a registry by hand.
    """

    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    origin: Mapping[tuple[str, str], str] = field(default_factory=dict)
    plugins: tuple[PluginInfo, ...] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    resolve_adapter: Callable[[str, str, Path], AdapterSource | None] = lambda *_: None
    engine_started: Callable[[Any], None] = lambda _: None
    engine_stopping: Callable[[Any], None] = lambda _: None
    request_finished: Callable[[Any], None] = lambda _: None
    counter: CountsCalls | None = None

    def of(self, hook: str) -> Mapping[str, Any]:
        """Records that `hook` gave, by name, in order of loading."""
        return self.records.get(hook, {})

    def plugin_of(self, hook: str, name: str) -> str:
        """Name of the plugin that brought a record."""
        return self.origin.get((hook, name), "?")

    def all(self, hook: str) -> Iterable[Any]:
        """Records that `hook` gave, in order of loading."""
        return self.of(hook).values()

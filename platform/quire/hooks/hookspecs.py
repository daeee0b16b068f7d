"""The plugin contract: all hooks, in three families that differ by the word class of the name.

* nouns, `quire_<plural>`: called once per process, when plugins load; they yield frozen records. They describe and do
  not build: no device, no weights, no files, no heavy imports.
* questions, `quire_<verb>_<object>`: called at run time, rarely, in a worker thread. The first result that is not None
  is used; plugins that were loaded later are called first.
* events, `quire_<object>_<participle>`: called after the event, outside the step loop. An exception is logged and
  counted against the plugin.

A hook may take any subset of the arguments listed here, by name. `options` has the values of the plugin's own options
by name, as in `records.Context`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from quire.records import (
    AdapterRuntime,
    AdapterSource,
    Architecture,
    ArchitectureFallback,
    Command,
    DemoModel,
    Drafter,
    Executor,
    GrammarBackend,
    InputMapper,
    KvEventPublisher,
    LogitsProcessor,
    MetricsExporter,
    OpImpl,
    Option,
    Quantization,
    ReasoningParser,
    RequestGate,
    Router,
    RoutingPolicy,
    SchedulerPolicy,
    ToolParser,
    Transcriber,
)

if TYPE_CHECKING:
    from quire.types import ModelInfo, RequestSummary, UsageRecord

PROJECT = "quire"
"""Name of the pluggy project and of the entry-point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

# --- nouns: collected once, when plugins load ------------------------------------------------------


@hookspec
def quire_architectures() -> Iterable[Architecture]:  # type: ignore[empty-body]
    """Model architectures, by the names that config.json uses."""


@hookspec
def quire_architecture_fallbacks() -> Iterable[ArchitectureFallback]:  # type: ignore[empty-body]
    """Builders of models whose architecture no plugin names, chosen by `--model-impl`."""


@hookspec
def quire_input_mappers() -> Iterable[InputMapper]:  # type: ignore[empty-body]
    """How an architecture accepts a modality: a media item becomes ids and tensors."""


@hookspec
def quire_transcribers() -> Iterable[Transcriber]:  # type: ignore[empty-body]
    """How an architecture that accepts audio is prompted to transcribe or translate speech."""


@hookspec
def quire_ops() -> Iterable[OpImpl]:  # type: ignore[empty-body]
    """Implementations of operations listed in `quire_kernels.ops`.

    Import compilers inside `load`. `quire_testing.check_op` runs one against the reference.
    """


@hookspec
def quire_quantizations() -> Iterable[Quantization]:  # type: ignore[empty-body]
    """Ways to store the matrices of a model in fewer bits, chosen by `--quantization`."""


@hookspec
def quire_logits_processors() -> Iterable[LogitsProcessor]:  # type: ignore[empty-body]
    """Processors that change logits of requests that carry one of their fields."""


@hookspec
def quire_grammar_backends() -> Iterable[GrammarBackend]:  # type: ignore[empty-body]
    """Compilers of constraints on the output."""


@hookspec
def quire_scheduler_policies() -> Iterable[SchedulerPolicy]:  # type: ignore[empty-body]
    """Orders of admission and preemption, chosen by `--scheduling-policy`."""


@hookspec
def quire_routing_policies() -> Iterable[RoutingPolicy]:  # type: ignore[empty-body]
    """Ways to divide requests among engine processes, chosen by `--data-parallel-routing`."""


@hookspec
def quire_executors() -> Iterable[Executor]:  # type: ignore[empty-body]
    """Ways to run the ranks of a model, chosen by `--distributed-executor-backend`."""


@hookspec
def quire_drafters() -> Iterable[Drafter]:  # type: ignore[empty-body]
    """Ways to draft tokens that the model then verifies, chosen by `method` of `--speculative-config`."""


@hookspec
def quire_adapter_runtimes() -> Iterable[AdapterRuntime]:  # type: ignore[empty-body]
    """Runtimes of adapters beside the base weights, each for some PEFT types."""


@hookspec
def quire_tool_parsers() -> Iterable[ToolParser]:  # type: ignore[empty-body]
    """Formats in which models write tool calls."""


@hookspec
def quire_reasoning_parsers() -> Iterable[ReasoningParser]:  # type: ignore[empty-body]
    """Formats in which models write their reasoning before the answer."""


@hookspec
def quire_request_gates() -> Iterable[RequestGate]:  # type: ignore[empty-body]
    """Gates that admit, change or refuse a request before it is tokenized."""


@hookspec
def quire_routers() -> Iterable[Router]:  # type: ignore[empty-body]
    """HTTP routes, mounted after the built-in ones."""


@hookspec
def quire_commands() -> Iterable[Command]:  # type: ignore[empty-body]
    """Subcommands of the command line tool `platform`."""


@hookspec
def quire_metrics_exporters() -> Iterable[MetricsExporter]:  # type: ignore[empty-body]
    """Destinations of engine statistics, called about once a second."""


@hookspec
def quire_kv_event_publishers() -> Iterable[KvEventPublisher]:  # type: ignore[empty-body]
    """Ways to publish what changes in the prefix cache, chosen by `publisher` of `--kv-events-config`."""


@hookspec
def quire_options() -> Iterable[Option]:  # type: ignore[empty-body]
    """Settings of this plugin: flags `--<plugin>.<name>`."""


@hookspec
def quire_demo_models() -> Iterable[DemoModel]:  # type: ignore[empty-body]
    """Small models that are served when the user names none."""


# --- questions: called at run time, the first answer is used ---------------------------------------


@hookspec(firstresult=True)
def quire_resolve_adapter(
    name: str, base_model: str, cache_dir: Path, options: Mapping[str, Any]
) -> AdapterSource | None:
    """The folder of the adapter that a request names, None if this plugin does not have it.

    Called in a worker thread for a name that is not loaded; it may block.
    """


# --- events: called after the event -----------------------------------------------------------------


@hookspec
def quire_engine_started(info: ModelInfo, options: Mapping[str, Any]) -> None:
    """A model was loaded, and serves requests from now on."""


@hookspec
def quire_engine_stopping(info: ModelInfo, options: Mapping[str, Any]) -> None:
    """A model is about to be unloaded; its requests have ended."""


@hookspec
def quire_request_finished(summary: RequestSummary, options: Mapping[str, Any]) -> None:
    """A request ended, for any reason."""


@hookspec
def quire_usage_recorded(records: Sequence[UsageRecord], options: Mapping[str, Any]) -> None:
    """Requests ended and were accounted for: what each of them used."""

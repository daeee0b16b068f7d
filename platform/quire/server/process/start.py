"""Starts the server from its settings, in the order that takes the least time.

The engine process takes longest, so it gets its models first; FastAPI and the rest of the server are imported
meanwhile. For that reason this module imports none of them at the top.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quire.engine_process.client import EngineClient
from quire.engine_process.replicas.client import ReplicatedClient
from quire.engine_process.settings import GC_THRESHOLDS, EngineProcessSettings
from quire.engine_process.wire.process_source import ProcessSource
from quire.engine_process.wire.spawn import SpawnedProcess
from quire.media.limits import MediaLimits
from quire.records import Registry
from quire.routing.chosen_policy import ChosenPolicy
from quire.server.accounting.opening import check_files
from quire.server.changes.aliases import check_models, parse_aliases
from quire.server.connections.listen import bind, check_tls
from quire.server.process.allocator import return_freed_memory
from quire.server.process.registered import at_start, check_sizes, memory_plan
from quire.server.process.shutdown import ignore_hangups
from quire.server.process.started import OnReady
from quire.server.process.startup_adapters import parse_lora_modules
from quire.server.tracing.exporting import build_tracing
from quire.settings.kv_events_config import KvEventsConfig
from quire.settings.model_config import ModelConfig
from quire.settings.server_config import ServerConfig
from quire.settings.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from quire.server.changes.reload import SettingsSource

SWITCH_INTERVAL_S = 0.001
"""GIL switch interval: how long a worker thread may delay the event loop. The default is five times as long."""


def process_settings(
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    *,
    plugins: Sequence[str] | None = None,
    enable_lora: bool = False,
) -> EngineProcessSettings:
    """What the engine processes of a server get. Raises ConfigError for adapters that do not fit the models."""
    # the time of a restart counts where a lost process takes others with it, or other processes go on
    has_several = config.data_parallel_size > 1 or any(model.num_ranks > 1 for model in models)
    return EngineProcessSettings(
        plugins=plugins,
        options=registry.options,
        enable_lora=enable_lora,
        adapters=parse_lora_modules(models, config, registry, at_start(models)),
        log_level=config.log_level,
        log_format=config.log_format,
        max_restarts=config.max_restarts,
        engine_timeout_s=config.engine_timeout_s,
        plugin_max_faults=config.plugin_max_faults,
        kv_events=config.kv_events_config,
        memory=memory_plan(models, config),
        kill_frozen=has_several,
        processes=ProcessSource(keeps_one=True) if has_several else None,
    )


def build_client(
    models: Sequence[ModelConfig], settings: EngineProcessSettings, config: ServerConfig, registry: Registry
) -> EngineClient | ReplicatedClient:
    """The client of one engine process, or of several, with the models that the start loads.

    Raises ConfigError for an unknown routing policy.
    """
    models = at_start(models)
    if config.data_parallel_size == 1:
        return EngineClient(models, settings)
    policy = ChosenPolicy(registry, config.data_parallel_routing)
    return ReplicatedClient(models, settings, config.data_parallel_size, policy)


def run_server(
    models: Sequence[ModelConfig],
    config: ServerConfig,
    registry: Registry,
    *,
    plugins: Sequence[str] | None = None,
    enable_lora: bool = False,
    defaults: ModelConfig | None = None,
    on_ready: OnReady | None = None,
    spawned: SpawnedProcess | None = None,
    settings_file: SettingsSource | None = None,
) -> int:
    """Run the server until SIGINT or SIGTERM; returns the exit status. Raises StartupError if it cannot start.

    The status is 0 after a signal, 1 if the models could not be kept running, and 128 plus the signal's number if the
    signal arrived while they were loading. The process ends some seconds after `shutdown_timeout_s` at the latest.

    plugins, enable_lora: as given to `quire.hooks.registry.load`, for the engine process. defaults: settings of
    models that requests load. settings_file: where settings can be read again.
    on_ready: called when the server accepts requests. spawned: a process for the engine that was started before.
    """
    return_freed_memory()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    logging.getLogger("quire").setLevel(config.log_level.upper())
    check_tls(config)
    check_files(config.usage_db, config.audit_log)
    for model in models:
        MediaLimits.from_config(model, registry)  # raises ConfigError now instead of after loading
        SpeculativeConfig.from_registry(model.speculation, registry)
        model.executor_record(registry)
    check_models(parse_aliases(config.model_aliases), [name for model in models for name in model.served_model_name])
    check_sizes(models, config)
    KvEventsConfig.from_registry(config.kv_events_config, registry)
    tracing = build_tracing(config.otlp_traces_endpoint, os.environ)
    with ignore_hangups(), contextlib.closing(bind(config)) as listener:
        settings = process_settings(models, config, registry, plugins=plugins, enable_lora=enable_lora)
        client = build_client(models, settings, config, registry)
        client.launch(spawned)

        import uvloop

        from quire.server.process.serve import serve_until_stopped

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(
                serve_until_stopped(
                    client, listener, models, config, registry, on_ready, tracing, defaults, settings_file
                )
            )
